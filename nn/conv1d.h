// A convolution along sequences, with PyTorch's initialisation.
//
//   nn::Conv1d conv(128, 64, 3, {.padding = 1});   // conv.weight [64, 128, 3], conv.bias [64]
//   Tensor y = conv(x);                            // [B, 128, L] -> [B, 64, L]
#pragma once

#include "lathe/core/ops/windows/conv1d.h"
#include "lathe/nn/callable_module.h"

namespace lathe::nn {

class Conv1d : public CallableModule<Conv1d> {
 public:
  // Draws weight and bias uniformly within 1 / sqrt(in / groups * kernel_size), as PyTorch does.
  // Throws InvalidArgument if the numbers make no layer.
  Conv1d(int64_t in, int64_t out, int64_t kernel_size, const Conv1dOptions& options = {},
         bool with_bias = true);

  // x: [B, in, L] -> [B, out, O]; see lathe::Conv1d.
  Tensor Forward(const Tensor& x) const { return lathe::Conv1d(x, weight, bias, options_); }
  // Packed x: [T, in] -> [T, out]; see lathe::PackedConv1d. Throws unless stride and dilation are 1
  // and padding is (kernel_size - 1) / 2, because every token keeps its row.
  Tensor Forward(const Tensor& x, const PackedSequences& sequences) const;

  Tensor weight, bias;

 private:
  Conv1dOptions options_;
};

}  // namespace lathe::nn
