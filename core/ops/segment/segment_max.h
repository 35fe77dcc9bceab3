// The maxima of each sequence's rows, as text classifiers with convolutions pool.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Returns the largest element of each column in each sequence's rows of x: [T, C] -> [B, C].
// Sequence b has the rows from cu_seqlens[b] to cu_seqlens[b + 1] - 1. cu_seqlens: [B + 1] i32,
// from 0 on, not decreasing. A sequence without rows gives 0, as for SegmentMean. The first of
// equal elements gets the gradient. A NaN is the maximum of its column, and the first one gets the
// gradient. Rows beyond the last sequence count nowhere and get a gradient of 0.
//
//   const Tensor pooled = SegmentMax(features, context.sequences.cu_seqlens);
//
// x is float32 or bfloat16, on the host also float64, on a device also float16. Throws for shapes,
// dtypes and devices that do not fit. cu_seqlens is trusted if it lies on a device.
Tensor SegmentMax(const Tensor& x, const Tensor& cu_seqlens);

}  // namespace lathe
