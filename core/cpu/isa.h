// Which instruction set the CPU kernels use: the level of x86-64 (2: SSE4.2, 3: AVX2 and FMA, 4:
// AVX-512), and 5: AVX-512 with AVX512-BF16. level.h tells kernel sources what a level has.
//
// A kernel family is a struct of function pointers. Its source is compiled once for each level and
// defines `template <> const SomeKernels& TableOf<SomeKernels, LATHE_ISA>()`;
// `Kernels<SomeKernels>()` picks one.
#pragma once

namespace lathe::cpu {

// The highest level that this machine has, capped by the environment's LATHE_MAX_ISA: throws if
// that is set but not 2 to 5.
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
