#include "lathe/core/ops/shaping/view.h"

#include <algorithm>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/dimensions.h"
#include "lathe/core/ops/shaping/strided_copy.h"

namespace lathe {

Tensor Squeeze(const Tensor& x) {
  Shape shape;
  for (const int64_t size : x.shape()) {
    if (size != 1) shape.push_back(size);
  }
  return Reshape(x, shape);
}

Tensor Squeeze(const Tensor& x, int64_t dim) {
  Shape shape = x.shape();
  const int at = CheckedDim("squeeze", shape, dim);
  if (shape[at] == 1) shape.erase(shape.begin() + at);
  return Reshape(x, shape);
}

Tensor Unsqueeze(const Tensor& x, int64_t dim) {
  Shape shape = x.shape();
  const int64_t n = x.ndim() + 1;
  Check(dim >= -n && dim < n, "unsqueeze", "shape ", shape, " can't get a dimension ", dim);
  shape.insert(shape.begin() + (dim < 0 ? dim + n : dim), 1);
  return Reshape(x, shape);
}

Tensor Flatten(const Tensor& x, int64_t start_dim, int64_t end_dim) {
  if (x.ndim() == 0) return Reshape(x, {1});
  const int first = CheckedDim("flatten", x.shape(), start_dim);
  const int last = CheckedDim("flatten", x.shape(), end_dim);
  Check(first <= last, "flatten", "start_dim ", start_dim, " lies behind end_dim ", end_dim,
        " in shape ", x.shape());
  Shape shape(x.shape().begin(), x.shape().begin() + first);
  int64_t size = 1;
  for (int d = first; d <= last; ++d) size *= x.shape()[d];
  shape.push_back(size);
  shape.insert(shape.end(), x.shape().begin() + last + 1, x.shape().end());
  return Reshape(x, shape);
}

// y = x, repeated;  dx = the sum of dy over the repetitions, which SetGrad computes
Tensor Expand(const Tensor& x, Shape shape) {
  const Shape wanted = shape;
  const size_t more = shape.size() - std::min(shape.size(), x.shape().size());
  bool fits = shape.size() >= x.shape().size();
  for (size_t d = 0; d < shape.size() && fits; ++d) {
    const bool is_new = d < more;
    if (shape[d] == -1 && !is_new) shape[d] = x.shape()[d - more];
    fits = shape[d] >= 0 && (is_new || x.shape()[d - more] == shape[d] || x.shape()[d - more] == 1);
  }
  Check(fits, "expand", "shape ", x.shape(), " can't be expanded to ", wanted);
  const AllocationTag allocation_tag = AllocationTag::Op("expand");
  const Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  CopyStrided("expand", shape, {x, BroadcastStrides(x.shape(), shape)},
              {y, ContiguousStrides(shape)});
  return Record("expand", y, {x}, {},
                [](BackwardContext& context) { context.SetGrad(0, context.grad_output()); });
}

}  // namespace lathe
