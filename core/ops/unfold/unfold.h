// The neighbours of each token side by side, so that a product makes a convolution of them.
#pragma once

#include "lathe/core/kernels/unfold_kernels.h"
#include "lathe/core/ops/attention.h"

namespace lathe {

// Returns [T, taps * H] for x [T, H]. Columns [t H, (t + 1) H) of a row are tap t. They hold the
// row of x that lies t - (taps - 1) / 2 places further. They hold zeros if the same sequence has no
// such row. So a linear layer with a weight [O, taps * H] is a convolution that never reads another
// sequence. With the order kColumns its weight is that of Conv1d, [O, H, taps], as it lies. Rows
// beyond the last sequence give 0 and get no gradient.
//
//   const Tensor trigrams = PackedUnfold(embeddings, sequences, 3);  // [T, 3 * H]
//
// x is float32 or bfloat16, on the host also float64, on a device also float16. Throws if taps is
// less than 1 or if the sequences don't fit x. On a device cu_seqlens is trusted. The backward pass
// adds the gradients of a row's copies in the order of the taps, and assigns the sum.
Tensor PackedUnfold(const Tensor& x, const PackedSequences& sequences, int64_t taps,
                    UnfoldOrder order = UnfoldOrder::kTaps);

// Composes the same of single ops: documentation and test oracle.
Tensor PackedUnfoldComposed(const Tensor& x, const PackedSequences& sequences, int64_t taps,
                            UnfoldOrder order = UnfoldOrder::kTaps);

}  // namespace lathe
