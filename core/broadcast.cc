#include "lathe/core/broadcast.h"

#include <algorithm>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/reduce_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe {

Shape BroadcastShape(const char* op, const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    Check(da == db || da == 1 || db == 1, op, "shapes ", a, " and ", b, " don't broadcast");
    out[out.size() - 1 - i] = da == 1 ? db : da;
  }
  return out;
}

Shape BroadcastStrides(const Shape& shape, const Shape& target) {
  Shape strides(target.size(), 0);
  int64_t stride = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t d = shape[shape.size() - 1 - i];
    strides[target.size() - 1 - i] = d == 1 ? 0 : stride;
    stride *= d;
  }
  return strides;
}

WalkDims MergedDims(const Shape& shape, const Shape& a_strides, const Shape& b_strides) {
  WalkDims dims = {};
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const int outer = dims.count - 1;
    if (outer >= 0 && dims.a_strides[outer] == a_strides[d] * shape[d] &&
        dims.b_strides[outer] == b_strides[d] * shape[d]) {
      dims.sizes[outer] *= shape[d];
      dims.a_strides[outer] = a_strides[d];
      dims.b_strides[outer] = b_strides[d];
      continue;
    }
    Check(dims.count < kMaxWalkDims, "broadcast", "shape ", shape, " needs more than ",
          kMaxWalkDims, " dimensions after merging");
    dims.sizes[dims.count] = shape[d];
    dims.a_strides[dims.count] = a_strides[d];
    dims.b_strides[dims.count] = b_strides[d];
    ++dims.count;
  }
  return dims;
}

Tensor SumToShape(const Tensor& t, const Shape& shape) {
  if (t.shape() == shape) return t;
  Check(BroadcastShape("sum_to_shape", t.shape(), shape) == t.shape(), "sum_to_shape", "shape ",
        t.shape(), " was not broadcast from ", shape);
  const Shape strides = BroadcastStrides(shape, t.shape());
  if (!t.device().is_cpu()) {
    Tensor sums = Tensor::Empty(shape, t.dtype(), t.device());
    DeviceKernels<ReduceKernels>().sum(
        sums.raw_data(), t.raw_data(), t.dtype(),
        MergedDims(t.shape(), BroadcastStrides(t.shape(), t.shape()), strides));
    return sums;
  }
  Tensor out = Tensor::Zeros(shape, t.dtype(), t.device());
  DispatchFloat(t.dtype(), "sum_to_shape", [&](auto tag) {
    using T = decltype(tag);
    const T* in = t.data<T>();
    T* sums = out.data<T>();
    Shape index(t.shape().size(), 0);
    int64_t at = 0;
    for (int64_t i = 0, n = t.numel(); i < n; ++i) {
      sums[at] += in[i];
      for (int d = static_cast<int>(index.size()) - 1; d >= 0; --d) {
        at += strides[d];
        if (++index[d] < t.shape()[d]) break;
        at -= strides[d] * index[d];
        index[d] = 0;
      }
    }
  });
  return out;
}

void AddInPlace(Tensor& target, const Tensor& other) {
  Check(target.shape() == other.shape(), "add", "expected shape ", target.shape(), " but got ",
        other.shape());
  const int64_t n = target.numel();
  if (!target.device().is_cpu()) {
    Check(target.device() == other.device() && target.dtype() == other.dtype(), "add",
          "a tensor on ", ToString(other.device()), " can't be added to one on ",
          ToString(target.device()));
    if (n > 0) {
      DeviceKernels<TensorKernels>().add(target.raw_data(), other.raw_data(), target.dtype(), n);
    }
  } else if (target.dtype() == DType::kF64) {
    double* a = target.data<double>();
    const double* b = other.data<double>();
    for (int64_t i = 0; i < n; ++i) a[i] += b[i];
  } else if (target.dtype() == DType::kBF16) {
    cpu::Kernels<cpu::ConvertKernels>().add_bf16(target.data<BFloat16>(), other.data<BFloat16>(),
                                                 n);
  } else {
    cpu::Kernels<cpu::ConvertKernels>().add_f32(target.data<float>(), other.data<float>(), n);
  }
  target.impl()->storage->BumpVersion();
}

}  // namespace lathe
