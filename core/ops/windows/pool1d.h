// Pooling over windows of [B, C, L] along L, as PyTorch's MaxPool1d and AvgPool1d. For packed
// sequences see segment/segment_mean.h and segment/segment_max.h.
//
//   Tensor y = MaxPool1d(x, {.kernel_size = 2});                               // L -> L / 2
//   Tensor z = AvgPool1d(x, {.kernel_size = 3, .stride = 1, .padding = 1});    // L -> L
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

struct MaxPool1dOptions {
  int64_t kernel_size = 1;
  int64_t stride = 0;   // 0: kernel_size
  int64_t padding = 0;  // on both sides, with -inf; at most half of kernel_size
  int64_t dilation = 1;
};

struct AvgPool1dOptions {
  int64_t kernel_size = 1;
  int64_t stride = 0;   // 0: kernel_size
  int64_t padding = 0;  // on both sides, with 0; at most half of kernel_size
  bool count_include_pad = true;
};

// x: [B, C, L] -> [B, C, (L + 2 padding - dilation (kernel_size - 1) - 1) / stride + 1], rounded
// down. The gradient of a maximum goes to the first of equal elements. A NaN is the result of its
// windows; the last one gets the gradient. x is float32, bfloat16 or float64 on the host, and
// float32, bfloat16 or float16 on a device. Sums are formed in float32, or float64. Both throw
// InvalidArgument if no window fits.
Tensor MaxPool1d(const Tensor& x, const MaxPool1dOptions& options);
Tensor AvgPool1d(const Tensor& x, const AvgPool1dOptions& options);

}  // namespace lathe
