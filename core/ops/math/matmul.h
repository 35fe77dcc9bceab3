// Batched matrix products, differentiable.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

struct MatMulOptions {
  bool transpose_a = false, transpose_b = false;  // of the last two dimensions
};

// Returns op(a) op(b) for the matrices in the last two dimensions: [..., M, K] x [..., K, N] ->
// [..., M, N]. The leading dimensions broadcast by NumPy's rules. A vector [K] as a counts as [1,
// K], and as b as [K, 1]; the result lacks that dimension. A vector has no transpose. For two
// matrices this is Matmul (ops/linear.h).
//
//   Tensor scores = MatMul(queries, keys, {.transpose_b = true});  // [B, L, D] each -> [B, L, L]
//
// Both have one dtype: float32, bfloat16 or float64 on the host; float32, bfloat16 or float16 on a
// device. Sums are formed in float32, or float64. So are sums over matrices that were broadcast, in
// a fixed order. All gradients are assigned. Throws InvalidArgument with both shapes if these don't
// fit.
Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options = {});

// Composes the same of single products: documentation and test oracle. Both need at least two
// dimensions.
Tensor MatMulComposed(const Tensor& a, const Tensor& b, const MatMulOptions& options = {});

}  // namespace lathe
