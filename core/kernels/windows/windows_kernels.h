// Declares the device's kernels that read windows of x: [B, C, L] along L.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Window o holds the elements o * stride - padding + t * dilation, for t from 0 to kernel - 1.
// Those outside [0, length) are padding.
struct WindowArgs {
  int64_t batch = 0, channels = 0, length = 0;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
  int64_t out_length = 0;
  bool count_padding = true;  // means divide by the kernel's size, not by the elements in x

  constexpr int64_t At(int64_t o, int64_t t) const { return o * stride - padding + t * dilation; }
};

// Elements are f32, bf16 or f16. All kernels write all of their result. Sums run in float32, in a
// fixed order. dx and dy have the shapes of x and y.
struct WindowsKernels {
  // y: [B * out_length, C * kernel]
  void (*unfold)(void* y, const void* x, DType type, const WindowArgs& args);
  void (*unfold_grad)(void* dx, const void* dy, DType type, const WindowArgs& args);
  // y: [B, C, out_length]. places: the same shape, where each element of y lies along L.
  void (*max)(void* y, int32_t* places, const void* x, DType type, const WindowArgs& args);
  void (*max_grad)(void* dx, const void* dy, const int32_t* places, DType type,
                   const WindowArgs& args);
  void (*mean)(void* y, const void* x, DType type, const WindowArgs& args);
  void (*mean_grad)(void* dx, const void* dy, DType type, const WindowArgs& args);
  // in: [batch, rows, columns] -> out: [batch, columns, rows]
  void (*swap_last)(void* out, const void* in, DType type, int64_t batch, int64_t rows,
                    int64_t columns);
};

}  // namespace lathe
