// Bias and activation in one pass.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/isa.h"

namespace lathe::cpu {

enum class ActivationKind { kNone, kGelu, kGeluNew, kRelu, kTanh, kSilu };

struct ActivationKernels {
  template <typename T>
  struct Of {
    // x: (rows, n) += bias (n, may be null); y = act(x), not touched for kNone (may be null then).
    void (*forward)(T* y, T* x, const T* bias, int64_t rows, int64_t n, ActivationKind kind);
    // dx = dy * act'(x), all (n) elements; dx may be dy.
    void (*backward)(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind);
    // sums: (n) += column sums of x: (rows, n) with row stride ld.
    void (*column_sums)(T* sums, const T* x, int64_t rows, int64_t n, int64_t ld);
  };
  Of<float> f32;
  Of<double> f64;
};

}  // namespace lathe::cpu
