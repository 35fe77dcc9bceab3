// The functions of core/kernels/elementwise_functions.h over arrays of float32 or float64, on one
// thread.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lathe/core/base/isa.h"
#include "lathe/core/kernels/elementwise_functions.h"

namespace lathe::cpu {

template <typename F>
struct MapKernel {
  // y: (n) = f(x); y may be x.
  template <typename T>
  using Run = void (*)(const F& f, T* y, const T* x, int64_t n);
  Run<float> f32;
  Run<double> f64;
};

// A matrix as an operand: element (r, c) lies at r * row_stride + c * stride. `stride` is 1, or 0
// to repeat an element along its row.
template <typename T>
struct ZipOperand {
  const T* data;
  int64_t row_stride, stride;
};

template <typename F>
struct ZipKernel {
  // y: (rows, n) = f(a, b); y may be an operand that repeats nothing.
  template <typename T>
  using Run = void (*)(const F& f, T* y, ZipOperand<T> a, ZipOperand<T> b, int64_t rows, int64_t n);
  Run<float> f32;
  Run<double> f64;
};

// Has a base class Kernel<F> for each function of a list.
template <template <typename> class Kernel, typename Functions>
struct KernelsOfAll;
template <template <typename> class Kernel, typename... F>
struct KernelsOfAll<Kernel, functions::List<F...>> : Kernel<F>... {};

struct ElementwiseKernels {
  KernelsOfAll<MapKernel, functions::UnaryFunctions> maps;
  KernelsOfAll<ZipKernel, functions::BinaryFunctions> zips;
};

// Return this machine's kernel for a function and a type.
template <typename T, typename F>
auto MapOf(const F&) {
  const MapKernel<F>& kernel = Kernels<ElementwiseKernels>().maps;
  if constexpr (std::is_same_v<T, float>) {
    return kernel.f32;
  } else {
    return kernel.f64;
  }
}
template <typename T, typename F>
auto ZipOf(const F&) {
  const ZipKernel<F>& kernel = Kernels<ElementwiseKernels>().zips;
  if constexpr (std::is_same_v<T, float>) {
    return kernel.f32;
  } else {
    return kernel.f64;
  }
}

}  // namespace lathe::cpu
