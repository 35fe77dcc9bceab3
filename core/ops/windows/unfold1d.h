// Windows of [B, C, L] side by side, so that a product makes a convolution of them.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

struct WindowOptions {
  int64_t stride = 1, padding = 0, dilation = 1;
};

// Returns [B * O, C * kernel_size] for x [B, C, L], with O = (L + 2 padding - dilation (kernel_size
// - 1) - 1) / stride + 1, rounded down. Row b O + o holds window o of sample b: for each channel
// the elements at o * stride - padding + t * dilation, for t from 0 to kernel_size - 1. Those
// beyond the ends count as 0. x is float32, bfloat16 or float64 on the host, and float32, bfloat16
// or float16 on a device. Throws InvalidArgument if no window fits.
Tensor Unfold1d(const Tensor& x, int64_t kernel_size, const WindowOptions& options = {});

// Swaps the last two dimensions: [B, R, C] -> [B, C, R]. The types are those of Unfold1d.
Tensor SwapLast(const Tensor& x);

}  // namespace lathe
