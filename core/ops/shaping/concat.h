// Parts of tensors along any dimension, and tensors made of parts. Tensors may have any dtype;
// floating-point ones are differentiable. Negative dimensions count from the end.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// As the end of a slice: the end of the dimension.
inline constexpr int64_t kToEnd = std::numeric_limits<int64_t>::max();

// Returns every `step`th element of x from `begin` to before `end` along a dimension: x[begin:end]
// along dimension 0, x[:, begin:end] along 1. Negative begins and ends count from the end. Along
// dimension 0 with step 1 it is a view, which shares x's storage, else a copy. Throws for elements
// that don't exist; PyTorch would return fewer.
//
//   const Tensor first = Slice(x, 1, 0, 1);           // x[:, 0:1]
//   const Tensor odd = Slice(x, -1, 1, kToEnd, 2);    // x[..., 1::2]
Tensor Slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step = 1);

// Returns the parts of x along `dim` that have these sizes. Throws unless the sizes add up to x's.
std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim = 0);
// Returns parts of one size. The last part is smaller if `size` does not divide x's.
std::vector<Tensor> Split(const Tensor& x, int64_t size, int64_t dim = 0);

// Returns the tensors one behind the other along `dim`. They must agree in dtype and in all other
// dimensions.
Tensor Concat(const std::vector<Tensor>& tensors, int64_t dim);
// Returns tensors of one shape one behind the other along a new dimension: [2, 3] and [2, 3] with
// dimension 1 give [2, 2, 3].
Tensor Stack(const std::vector<Tensor>& tensors, int64_t dim = 0);

}  // namespace lathe
