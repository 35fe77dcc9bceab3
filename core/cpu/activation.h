// Activations, and the sums over rows that biases get as gradients.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

enum class ActivationKind { kNone, kGelu, kGeluNew, kRelu, kTanh, kSilu };

struct ActivationKernels {
  template <typename T>
  struct Of {
    // y = act(x), (n); y may be x.
    void (*forward)(T* y, const T* x, int64_t n, ActivationKind kind);
    // dx = dy * act'(x), all (n) elements; dx may be dy.
    void (*backward)(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind);
    // sums: (n) += column sums of x: (rows, n) with row stride ld.
    void (*column_sums)(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld);
    // `backward` of (rows, n), and sums: (n) = (if `overwrite`) or += the column sums of dx as it
    // is stored. kind is not kNone. Null where these are two passes.
    void (*backward_and_sums)(T* dx, MathType<T>* sums, const T* dy, const T* x, int64_t rows,
                              int64_t n, ActivationKind kind, bool overwrite) = nullptr;
    // `backward`, and y = act(x), (n), once more; dx may be dy. On the host.
    void (*backward_and_value)(T* dx, T* y, const T* dy, const T* x, int64_t n,
                               ActivationKind kind) = nullptr;
  };
  Of<float> f32;
  Of<double> f64;
  Of<BFloat16> bf16;
  Of<Float16> f16 = {};  // on other devices than the host
};

}  // namespace lathe::cpu
