#include "lathe/core/ops/shaping/permute.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/ops/shaping/dimensions.h"
#include "lathe/core/ops/shaping/strided_copy.h"

namespace lathe {
namespace {

// y[p] = x[q] with p_i = q_dims[i];  dx is dy in the reverse order
Tensor Permuted(const char* op, const Tensor& x, const std::vector<int>& dims) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  const Shape x_strides = ContiguousStrides(x.shape());
  Shape shape, strides;
  std::vector<int> reverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    shape.push_back(x.shape()[dims[i]]);
    strides.push_back(x_strides[dims[i]]);
    reverse[dims[i]] = static_cast<int>(i);
  }
  const Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  CopyStrided(op, shape, {x, strides}, {y, ContiguousStrides(shape)});
  return Record(op, y, {x}, {}, [op, reverse](BackwardContext& context) {
    context.SetGrad(0, Permuted(op, context.grad_output(), reverse));
  });
}

}  // namespace

Tensor Permute(const Tensor& x, const std::vector<int64_t>& dims) {
  std::vector<int> checked;
  std::vector<bool> seen(x.shape().size(), false);
  for (const int64_t dim : dims) {
    checked.push_back(CheckedDim("permute", x.shape(), dim));
    seen[checked.back()] = true;
  }
  const bool each_once =
      dims.size() == seen.size() && std::find(seen.begin(), seen.end(), false) == seen.end();
  Check(each_once, "permute", "expected each dimension of shape ", x.shape(), " once but got ",
        Shape(dims.begin(), dims.end()));
  return Permuted("permute", x, checked);
}

Tensor Transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  std::vector<int> dims(x.shape().size());
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims[CheckedDim("transpose", x.shape(), dim0)],
            dims[CheckedDim("transpose", x.shape(), dim1)]);
  return Permuted("transpose", x, dims);
}

Tensor Transpose(const Tensor& x) {
  Check(x.ndim() == 2, "transpose", "expected shape [R, C] but got ", x.shape());
  return Transpose(x, 0, 1);
}

}  // namespace lathe
