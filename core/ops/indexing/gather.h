// Elements picked by number along a dimension, and added by number, with PyTorch's semantics.
//
// An index is int32 or int64. A dimension counts from the end if it is negative. On the host, and
// for an index that lies there, a number outside of its dimension is an error that names it. If the
// index lies on a device, nothing is read back. Such a number then gives NaN, as said below, and no
// gradient. Sums have a fixed order everywhere: that of the index.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Returns the elements of x that the index names along `dim`, in the shape of the index:
// y[i][j] = x[i][index[i][j]] for two dimensions and dim 1. The index has as many dimensions as x,
// and none but `dim` may be longer. x may have any dtype. The gradient adds up the elements that
// were taken several times. On a device a number outside gives NaN, in integers all bits set.
//
//   const Tensor chosen = Gather(log_probabilities, 1, Unsqueeze(labels, 1));  // [N, 1]
Tensor Gather(const Tensor& x, int64_t dim, const Tensor& index);

// Returns x with the elements that a one-dimensional index names along `dim`: x[:, index] for
// dim 1. The rest is as for Gather. (GatherRows takes an index of any shape along dimension 0.)
Tensor IndexSelect(const Tensor& x, int64_t dim, const Tensor& index);

// Returns a copy of x to which the elements of `source` are added where the index names:
// y[i][index[i][j]] += source[i][j] for two dimensions and dim 1. All three have equally many
// dimensions. No dimension of the index may be longer than that of source, or but for `dim` than
// that of x. x and source are float32, bfloat16 or float16, on the host also float64. Narrow types
// are added up in float32. On a device a number outside makes the first element of its line NaN.
Tensor ScatterAdd(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

// Returns 1 at the classes that the index names and 0 elsewhere, in the shape index.shape +
// [num_classes]. No gradient. On a device a number outside gives NaN, in integers all bits set.
Tensor OneHot(const Tensor& index, int64_t num_classes, DType dtype = DType::kI64);

}  // namespace lathe
