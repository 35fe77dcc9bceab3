// The maxima of windows along a line, on one thread.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

// Tap t of window o lies at o * stride - padding + t * dilation. Taps outside of the line's
// `length` elements do not count.
struct PoolLine {
  int64_t length, windows, taps, stride, padding, dilation;
};

struct PoolKernels {
  template <typename T>
  struct ForType {
    // Writes each window's first largest element, or its last NaN, to y: (windows), and its place
    // in x: (length) to `places`. A window without elements gives -infinity and place -1.
    void (*max)(T* y, int32_t* places, const T* x, const PoolLine& line);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
};

}  // namespace lathe::cpu
