// Tensors in shapes with other dimensions of size 1, and repeated along them. Tensors may have any
// dtype; floating-point ones are differentiable. Negative dimensions count from the end.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// These return views, which share x's storage.

// Returns x without its dimensions of size 1.
Tensor Squeeze(const Tensor& x);
// Returns x without dimension `dim` if its size is 1, else x in its own shape, as PyTorch does.
Tensor Squeeze(const Tensor& x, int64_t dim);
// Returns x with a further dimension of size 1 at `dim`, which may be one more than x has: [2, 3]
// and 1 give [2, 1, 3].
Tensor Unsqueeze(const Tensor& x, int64_t dim);
// Returns x with the dimensions from `start_dim` to `end_dim`, both included, as one. A scalar
// becomes [1].
Tensor Flatten(const Tensor& x, int64_t start_dim = 0, int64_t end_dim = -1);

// Returns a copy of x that is repeated to `shape` by NumPy's rules: dimensions of size 1 are
// repeated, and further ones may precede x's. -1 keeps a size. The gradient sums over repetitions.
// Throws `[expand] shape [2, 3] can't be expanded to [2, 4]`.
Tensor Expand(const Tensor& x, Shape shape);

}  // namespace lathe
