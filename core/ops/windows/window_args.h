// Checks of windows along the last dimension of x: [B, C, L].
#pragma once

#include "lathe/core/kernels/windows/windows_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe {

// Returns the arguments of kernels for windows over x. Throws `[op] ...` unless x is [B, C, L] and
// at least one window fits.
inline WindowArgs WindowsOver(const char* op, const Tensor& x, int64_t kernel, int64_t stride,
                              int64_t padding, int64_t dilation) {
  Check(x.ndim() == 3, op, "x must have shape [B, C, L] but has ", x.shape());
  Check(kernel >= 1 && stride >= 1 && dilation >= 1 && padding >= 0, op,
        "kernel, stride and dilation must be at least 1 and padding at least 0 but are ", kernel,
        ", ", stride, ", ", dilation, " and ", padding);
  const int64_t reach = dilation * (kernel - 1) + 1, padded = x.dim(2) + 2 * padding;
  Check(reach <= padded, op, "x of shape ", x.shape(), " has ", padded,
        " elements along L with padding, fewer than the ", reach, " of a window");
  return {.batch = x.dim(0),
          .channels = x.dim(1),
          .length = x.dim(2),
          .kernel = kernel,
          .stride = stride,
          .padding = padding,
          .dilation = dilation,
          .out_length = (padded - reach) / stride + 1};
}

}  // namespace lathe
