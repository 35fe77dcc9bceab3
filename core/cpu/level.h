// Describes a processor of level LATHE_ISA (see isa.h): its registers, and the instructions whose
// presence decides which way a kernel computes. Code in intrinsics, which must differ by the
// register's width, asks for LATHE_ISA itself.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
// Everything is in an unnamed namespace, so that no level runs another's code.
#pragma once

#include <cstdint>

namespace lathe::cpu {
namespace {

// The compiler cuts vectors of more bytes than this into pieces, which it keeps in memory, not in
// registers. So no kernel has such vectors in an inner loop.
constexpr int64_t kRegisterBytes = LATHE_ISA >= 4 ? 64 : LATHE_ISA == 3 ? 32 : 16;
constexpr int kVectorRegisters = LATHE_ISA >= 4 ? 32 : 16;

// True if one instruction rounds a register to bfloat16. It makes magnitudes below 2^-126 zero.
constexpr bool kRoundsInOneInstruction = LATHE_ISA >= 5;

// The number of registers that kernels narrow to bfloat16 together, because that takes least. With
// AVX-512 an instruction narrows a single one.
constexpr int kNarrowedTogether = LATHE_ISA <= 3 ? 2 : 1;

// Is 1 if there are products of pairs of bfloat16, and functions that use them. Clang 16 crashes
// when it compiles these. A macro, because their intrinsics don't compile at lower levels.
#if LATHE_ISA >= 5 && !defined(__clang__)
#define LATHE_HAS_BFLOAT16_PRODUCTS 1
#else
#define LATHE_HAS_BFLOAT16_PRODUCTS 0
#endif

// Lane l is lane indices[l] of a followed by b. Indices that the compiler knows make it one
// instruction.
template <typename Vector, typename Indices>
[[gnu::always_inline]] inline Vector Shuffled(Vector a, Vector b, Indices indices) {
#ifdef __clang__
  // Clang has no shuffle by a vector of indices, but makes one of this loop.
  constexpr int kLanes = sizeof(Vector) / sizeof(a[0]);
  Vector shuffled;
#pragma clang loop unroll(full)
  for (int l = 0; l < kLanes; ++l) {
    const auto index = indices[l];
    shuffled[l] = index < kLanes ? a[index] : b[index - kLanes];
  }
  return shuffled;
#else
  return __builtin_shuffle(a, b, indices);
#endif
}

}  // namespace
}  // namespace lathe::cpu
