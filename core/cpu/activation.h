// Activations, and the sums over rows that biases get as gradients.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

enum class ActivationKind { kNone, kGelu, kGeluNew, kRelu, kTanh, kSilu };

struct ActivationKernels {
  template <typename T>
  struct Of {
    // y = act(x), (n).
    void (*forward)(T* y, const T* x, int64_t n, ActivationKind kind);
    // dx = dy * act'(x), all (n) elements; dx may be dy.
    void (*backward)(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind);
    // sums: (n) += column sums of x: (rows, n) with row stride ld.
    void (*column_sums)(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld);
  };
  Of<float> f32;
  Of<double> f64;
  Of<BFloat16> bf16;
  Of<Float16> f16 = {};  // on other devices than the host
};

}  // namespace lathe::cpu
