// Convolutions along sequences that mix channels: over [B, C, L] as PyTorch's Conv1d, and over the
// tokens of packed sequences. Depthwise ones over packed sequences are in
// convolution/packed_convolution.h.
//
//   Tensor y = Conv1d(x, weight, bias, {.padding = 1});  // x: [B, C, L], weight: [O, C, 3]
#pragma once

#include "lathe/core/ops/attention.h"
#include "lathe/core/tensor.h"

namespace lathe {

struct Conv1dOptions {
  int64_t stride = 1, padding = 0, dilation = 1;  // padding: zeros on both sides
  int64_t groups = 1;                             // divides C and O
};

// Returns y [B, O, (L + 2 padding - dilation (taps - 1) - 1) / stride + 1], rounded down:
//
//   y[b, o, l] = bias[o] + sum_(c, t) weight[o, c, t] x[b, c, l stride - padding + t dilation]
//
// x: [B, C, L], weight: [O, C / groups, taps], bias: [O] or undefined. Each group of C / groups
// channels gives O / groups outputs. x is float32, bfloat16 or float64 on the host, and float32,
// bfloat16 or float16 on a device. Weight and bias are float32, or float64 if x is; products read
// copies of the weight in x's type. The backward pass adds to the gradients of weight and bias and
// assigns dx. Throws InvalidArgument with the shapes if they don't fit.
Tensor Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options = {});

// Does the same for packed x [T, C], with stride 1 and as many rows in the result, [T, O]. Row r
// holds the sum over the rows r + t - (taps - 1) / 2. Rows outside of r's own sequence count as 0.
// So an odd number of taps gives what Conv1d with padding (taps - 1) / 2 gives for each sequence.
// Rows beyond the last sequence hold the bias.
Tensor PackedConv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const PackedSequences& sequences, int64_t groups = 1);

// Composes Conv1d of unfolding and a product. Documentation, test oracle, and the way of devices.
Tensor Conv1dComposed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Conv1dOptions& options = {});

}  // namespace lathe
