// Picks the kernels and the C++ types for a device and a dtype, and when an op uses threads.
#pragma once

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/isa.h"
#include "lathe/core/cpu/convert.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe {

// The type in which kernels compute for activations stored as T, also that of their parameters:
// float for BFloat16 and Float16, else T itself.
template <typename T>
using MathType = cpu::MathType<T>;

// Loops over more elements than this are worth waking the threads.
inline constexpr int64_t kParallelSize = 16384;

template <typename Table>
const Table& KernelsOn(Device device) {
  return device.is_cpu() ? cpu::Kernels<Table>() : DeviceKernels<Table>();
}

template <typename T, typename Table>
const auto& KernelsOf(Device device) {
  const Table& table = KernelsOn<Table>(device);
  if constexpr (std::is_same_v<T, float>) {
    return table.f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return table.f64;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return table.bf16;
  } else {
    return table.f16;
  }
}

// Throws unless all the tensors that are defined lie on `device`.
inline void CheckSameDevice(const char* op, Device device, std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors) {
    Check(!t.defined() || t.device() == device, op, "expected a tensor on ", ToString(device),
          " but got one on ", t.defined() ? ToString(t.device()) : "");
  }
}

// Calls `body(T{})` with the C++ type of x's dtype. An error about memory that `body` takes names
// `op`. Throws `[op] ...` for a dtype that activations can't have there: float16 on the host,
// float64 on a device.
template <typename Body>
auto DispatchActivations(const Tensor& x, const char* op, Body&& body) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  const bool on_host = x.device().is_cpu();
  if (x.dtype() == DType::kBF16) return body(BFloat16{});
  if (x.dtype() == DType::kF16 && !on_host) return body(Float16{});
  Check(on_host || x.dtype() != DType::kF64, op, "float64 works on the CPU only");
  return DispatchFloat(x.dtype(), op, std::forward<Body>(body));
}

// Does the same for a tensor on the host.
template <typename Body>
auto DispatchOnHost(const Tensor& x, const char* op, Body&& body) {
  if (x.dtype() == DType::kBF16) return body(BFloat16{});
  return DispatchFloat(x.dtype(), op, std::forward<Body>(body));
}

// Returns the dtype of the statistics and parameters that go with activations of `dtype`.
inline DType MathDType(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

}  // namespace lathe
