// Gated activations (Shazeer 2020): y = act(a) * b, for each element.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/kernels/activation_functions.h"

namespace lathe::cpu {

// y is (rows, n) without gaps. Rows of a and b, and of their gradients, are `stride` elements
// apart.
struct GatedArgs {
  int64_t rows, n, stride;
  ActivationKind kind;  // kNone: y = a * b
};

struct GatedKernels {
  template <typename T>
  struct ForType {
    void (*forward)(T* y, const T* a, const T* b, const GatedArgs& args);
    // Assigns da = dy * b * act'(a) and db = dy * act(a). dy: (rows, n).
    void (*backward)(T* da, T* db, const T* dy, const T* a, const T* b, const GatedArgs& args);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
};

}  // namespace lathe::cpu
