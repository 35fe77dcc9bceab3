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

}  // namespace
}  // namespace lathe::cpu
