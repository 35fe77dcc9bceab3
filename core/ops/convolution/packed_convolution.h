// Convolutions over the tokens of packed sequences, in which each column reads only itself. Those
// that mix columns are products of unfolded rows (unfold/unfold.h).
#pragma once

#include "lathe/core/ops/attention.h"

namespace lathe {

// Returns y [T, H] for x [T, H] and a weight [H, taps] or [H, 1, taps], as Conv1d has it:
//
//   y[r, c] = sum_t weight[c, t] x[r + t - (taps - 1) / 2, c]
//
// Rows outside of the row's own sequence count as 0. Rows beyond the last sequence give 0 and get
// no gradient. x is float32 or bfloat16, on the host also float64, on a device also float16. The
// weight is float32, or float64 if x is. On a device cu_seqlens is trusted. All gradients are
// assigned. Throws InvalidArgument for shapes, dtypes and devices that do not fit.
Tensor DepthwiseConvolution(const Tensor& x, const Tensor& weight,
                            const PackedSequences& sequences);

struct DynamicConvolutionOptions {
  int64_t heads = 1;             // divides H
  bool first_rows_only = false;  // only the first row of each sequence has a result
};

// Returns the same with a kernel of its own for each row and head (Wu et al. 2019):
//
//   y[r, c] = sum_t kernels[r, h, t] x[r + t - (taps - 1) / 2, c],   h = c / (H / heads)
//
// kernels: [T, heads * taps], of the types of a weight. With first_rows_only they are [B, heads *
// taps], and y is [B, H].
//
//   DynamicConvolution(x, kernels, sequences, {.heads = 12, .first_rows_only = true})
Tensor DynamicConvolution(const Tensor& x, const Tensor& kernels, const PackedSequences& sequences,
                          const DynamicConvolutionOptions& options);

// Compose the same of single ops: documentation and test oracle.
Tensor DepthwiseConvolutionComposed(const Tensor& x, const Tensor& weight,
                                    const PackedSequences& sequences);
Tensor DynamicConvolutionComposed(const Tensor& x, const Tensor& kernels,
                                  const PackedSequences& sequences,
                                  const DynamicConvolutionOptions& options);

}  // namespace lathe
