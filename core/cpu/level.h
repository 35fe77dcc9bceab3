// Describes the registers of a processor of level LATHE_ISA (see isa.h).
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
