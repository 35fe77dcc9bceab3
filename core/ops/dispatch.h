// Picks the float32 or float64 entry of a kernel table.
#pragma once

#include "lathe/core/cpu/isa.h"

namespace lathe {

template <typename T, typename Table>
const auto& KernelsOf() {
  const Table& table = cpu::Kernels<Table>();
  if constexpr (std::is_same_v<T, float>) {
    return table.f32;
  } else {
    return table.f64;
  }
}

}  // namespace lathe
