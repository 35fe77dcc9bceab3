// The instruction set level that the CPU kernels use. Levels 2 to 4 are those of x86-64 (2: SSE4.2,
// 3: AVX2 and FMA, 4: AVX-512); level 5 is AVX-512 with AVX512-BF16. level.h tells kernel sources
// which registers a level has.
//
// A kernel family is a struct of function pointers. Its source is compiled once for each level and
// defines `template <> const SomeKernels& TableOf<SomeKernels, LATHE_ISA>()`.
// `Kernels<SomeKernels>()` returns the table of this machine's level.
#pragma once

namespace lathe::cpu {

// Returns the highest level that this machine has, capped by the environment variable
// LATHE_MAX_ISA. Throws if that variable is neither empty nor a number from 2 to 5.
int IsaLevel();

template <typename Table, int isa>
const Table& TableOf();

template <typename Table>
const Table& Kernels() {
  static const Table& table = IsaLevel() >= 5   ? TableOf<Table, 5>()
                              : IsaLevel() == 4 ? TableOf<Table, 4>()
                              : IsaLevel() == 3 ? TableOf<Table, 3>()
                                                : TableOf<Table, 2>();
  return table;
}

}  // namespace lathe::cpu
