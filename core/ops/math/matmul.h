// Batched matrix products, differentiable.
#pragma once

#include "lathe/core/tensor.h"
#include "lathe/core/transposes.h"

namespace lathe {

// Returns op(a) op(b) for the matrices in the last two dimensions: [..., M, K] x [..., K, N] ->
// [..., M, N]. The leading dimensions broadcast by NumPy's rules. A vector [K] as a counts as [1,
// K], and as b as [K, 1]; the result lacks that dimension. A vector has no transpose. For two
// matrices this is MatrixProduct (ops/linear.h).
//
//   Tensor scores = Matmul(queries, keys, {.b = true});  // [B, L, D] each -> [B, L, L]
//
// Both have one dtype: float32, bfloat16 or float64 on the host; float32, bfloat16 or float16 on a
// device. Sums are formed in float32, or float64. So are sums over matrices that were broadcast, in
// a fixed order. All gradients are assigned. Throws InvalidArgument with both shapes if these don't
// fit.
Tensor Matmul(const Tensor& a, const Tensor& b, Transposes transposes = {});

// Composes the same of single products: documentation and test oracle. Both need at least two
// dimensions.
Tensor MatmulComposed(const Tensor& a, const Tensor& b, Transposes transposes = {});

}  // namespace lathe
