// Activation functions, and the column sums that are the gradients of biases.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/kernels/activation_functions.h"

namespace lathe::cpu {

struct ActivationKernels {
  template <typename T>
  struct ForType {
    // y: (n) = act(x); y may be x.
    void (*forward)(T* y, const T* x, int64_t n, ActivationKind kind);
    // dx: (n) = dy * act'(x); dx may be dy.
    void (*backward)(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind);
    // Adds the column sums of x, (rows, n) with row stride ld, to sums: (n).
    void (*column_sums)(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld);
    // Does the same as `backward`, for (rows, n). Also sums up the columns of dx as it is stored.
    // Assigns the sums to sums: (n) if `overwrite`, else adds them. `kind` is not kNone. Null where
    // this would take two passes.
    void (*backward_and_sums)(T* dx, MathType<T>* sums, const T* dy, const T* x, int64_t rows,
                              int64_t n, ActivationKind kind, bool overwrite) = nullptr;
    // Does the same as `backward`, and also recomputes y: (n) = act(x). dx may be dy. Only the host
    // has it.
    void (*backward_and_value)(T* dx, T* y, const T* dy, const T* x, int64_t n,
                               ActivationKind kind) = nullptr;
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
};

}  // namespace lathe::cpu
