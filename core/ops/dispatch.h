// Picks the entry of a kernel table, and the C++ types, for a dtype.
#pragma once

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/isa.h"

namespace lathe {

// What kernels compute in for activations stored as T, and the type of their parameters: float for
// BFloat16, else T itself.
template <typename T>
using MathType = cpu::MathType<T>;

template <typename T, typename Table>
const auto& KernelsOf() {
  const Table& table = cpu::Kernels<Table>();
  if constexpr (std::is_same_v<T, float>) {
    return table.f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return table.f64;
  } else {
    return table.bf16;
  }
}

// Calls `body(T{})` with the C++ type of activations of `dtype`; throws `[op] ...` for a dtype that
// activations don't have.
template <typename Body>
auto DispatchActivations(DType dtype, const char* op, Body&& body) {
  if (dtype == DType::kBF16) return body(BFloat16{});
  return DispatchFloat(dtype, op, std::forward<Body>(body));
}

// The dtype of statistics and parameters that go with activations of `dtype`.
inline DType MathDType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

}  // namespace lathe
