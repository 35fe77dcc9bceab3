#include "lathe/nn/modules/functions.h"

#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"

namespace lathe::nn {

Tensor Softmax::Forward(const Tensor& x) const { return SoftmaxLast(x); }
Tensor LogSoftmax::Forward(const Tensor& x) const { return LogSoftmaxLast(x); }

Tensor Flatten::Forward(const Tensor& x) const {
  const int n = x.ndim();
  if (n == 0) return Reshape(x, {1});
  const int start = start_ < 0 ? start_ + n : start_, end = end_ < 0 ? end_ + n : end_;
  Check(start >= 0 && start < n && end >= 0 && end < n && start <= end, "flatten", "dimensions ",
        start_, " to ", end_, " do not fit shape ", x.shape());
  Shape shape;
  for (int i = 0; i < n; ++i) {
    if (i > start && i <= end) {
      shape.back() *= x.dim(i);
    } else {
      shape.push_back(x.dim(i));
    }
  }
  return Reshape(x, shape);
}

}  // namespace lathe::nn
