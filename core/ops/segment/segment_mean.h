// The mean of each sequence's rows, as classifiers pool hidden states.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Returns the mean of each sequence's rows of x: [T, C] -> [B, C]. Sequence b has the rows from
// cu_seqlens[b] to cu_seqlens[b + 1] - 1. cu_seqlens: [B + 1] i32, from 0 on, not decreasing. The
// mean of a sequence without rows is 0. Rows beyond the last sequence count nowhere and get a
// gradient of 0.
//
//   const Tensor pooled = SegmentMean(hidden_states, context.sequences.cu_seqlens);
//
// x is float32 or bfloat16, on the host also float64, on a device also float16. Rows are added in a
// fixed order: in double on the host, in float on a device. Throws for shapes, dtypes and devices
// that do not fit. cu_seqlens is trusted if it lies on a device.
Tensor SegmentMean(const Tensor& x, const Tensor& cu_seqlens);

// Composes the same of single ops: documentation and test oracle.
Tensor SegmentMeanComposed(const Tensor& x, const Tensor& cu_seqlens);

}  // namespace lathe
