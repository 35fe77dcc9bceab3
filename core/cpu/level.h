// What a processor of the level LATHE_ISA has (see isa.h): the one place that kernel sources ask.
//
// For kernel sources only, which are compiled once for each instruction set level: everything is in
// an unnamed namespace, so that no level runs another's code.
#pragma once

#include <cstdint>

namespace lathe::cpu {
namespace {

// Vectors of more bytes than this are cut into pieces by the compiler, which keeps the pieces in
// memory, not in registers: no kernel has them in an inner loop.
constexpr int64_t kRegisterBytes = LATHE_ISA >= 4 ? 64 : LATHE_ISA == 3 ? 32 : 16;
constexpr int kVectorRegisters = LATHE_ISA >= 4 ? 32 : 16;

}  // namespace
}  // namespace lathe::cpu
