#include "lathe/core/broadcast.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/rows/rows.h"
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

namespace {

template <typename T>
const cpu::RowKernels::ForType<T>& RowKernelsOf() {
  const cpu::RowKernels& kernels = cpu::Kernels<cpu::RowKernels>();
  if constexpr (std::is_same_v<T, float>) {
    return kernels.f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return kernels.f64;
  } else {
    return kernels.bf16;
  }
}

// Adds the elements of `in`, operand a of the walk, to `sums`, operand b. The order depends on the
// walk alone.
template <typename T, typename Sum>
void AddAll(const T* in, Sum* sums, const WalkDims& dims) {
  constexpr int64_t kFew = 32;  // elements of a row that are added faster without a call
  const auto& kernels = RowKernelsOf<T>();
  const int last = dims.count - 1;
  const int64_t n = dims.count == 0 ? 1 : dims.sizes[last];
  const bool adds_row = dims.count == 0 || dims.b_strides[last] == 0;
  // The rows of one matrix are added to the same sums.
  const bool adds_columns = !adds_row && last > 0 && dims.b_strides[last - 1] == 0;
  const int inner = adds_columns ? last - 1 : last;
  int64_t at[kMaxWalkDims] = {};
  for (;;) {
    if (adds_columns) {
      kernels.add_columns(sums, in, dims.sizes[inner], n, dims.a_strides[inner]);
    } else if (adds_row && n > kFew) {
      *sums += static_cast<Sum>(kernels.sum(in, n));
    } else if (adds_row) {
      Sum sum = *sums;
      for (int64_t i = 0; i < n; ++i) sum += cpu::Load(in[i]);
      *sums = sum;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sums[i] += cpu::Load(in[i]);
    }
    int d = inner - 1;
    for (; d >= 0; --d) {
      in += dims.a_strides[d];
      sums += dims.b_strides[d];
      if (++at[d] < dims.sizes[d]) break;
      in -= dims.a_strides[d] * at[d];
      sums -= dims.b_strides[d] * at[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

// Calls body(part, p, begin) for `parts` parts of the walk, on several threads. Part p has the
// elements p * size / parts = begin to (p + 1) * size / parts of dimension d.
template <typename Body>
void ForParts(const WalkDims& dims, int d, int64_t parts, Body body) {
  const int64_t size = dims.sizes[d];
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = size * p / parts;
    WalkDims part = dims;
    part.sizes[d] = size * (p + 1) / parts - begin;
    body(part, p, begin);
  }
}

// Does the same on several threads. Each has its own sums: they divide the largest dimension that
// is not summed over. If that is short, they divide the largest one that is, and the parts' sums
// are added in their order. So the result does not depend on the number of threads.
template <typename T, typename Sum>
void AddAllOnThreads(const T* in, Sum* sums, const WalkDims& dims) {
  constexpr int64_t kParallelSize = 16384, kParts = 16, kFewKept = 64, kFewSums = 4096;
  int64_t places = 1, num_sums = 1;
  int kept = -1, summed = -1;  // the largest dimensions of each kind
  for (int d = 0; d < dims.count; ++d) {
    const int64_t size = dims.sizes[d];
    places *= size;
    int& largest = dims.b_strides[d] != 0 ? kept : summed;
    if (dims.b_strides[d] != 0) num_sums *= size;
    if (largest < 0 || size > dims.sizes[largest]) largest = d;
  }
  if (places == 0) return;
  if (places <= kParallelSize) return AddAll(in, sums, dims);
  if (summed < 0 || (kept >= 0 && dims.sizes[kept] >= kFewKept) || num_sums > kFewSums) {
    return ForParts(dims, kept, std::min(dims.sizes[kept], kParts),
                    [&](const WalkDims& part, int64_t, int64_t begin) {
                      AddAll(in + begin * dims.a_strides[kept], sums + begin * dims.b_strides[kept],
                             part);
                    });
  }
  const int64_t parts = std::min(dims.sizes[summed], places / kParallelSize + 1);
  std::vector<Sum> of_parts(static_cast<size_t>(parts * num_sums), Sum(0));
  ForParts(dims, summed, parts, [&](const WalkDims& part, int64_t p, int64_t begin) {
    AddAll(in + begin * dims.a_strides[summed], of_parts.data() + p * num_sums, part);
  });
  for (int64_t i = 0; i < num_sums; ++i) {
    double sum = sums[i];
    for (int64_t p = 0; p < parts; ++p) sum += of_parts[p * num_sums + i];
    sums[i] = static_cast<Sum>(sum);
  }
}

}  // namespace

Tensor SumToShape(const Tensor& t, const Shape& shape) {
  if (t.shape() == shape) return t;
  Check(BroadcastShape("sum_to_shape", t.shape(), shape) == t.shape(), "sum_to_shape", "shape ",
        t.shape(), " was not broadcast from ", shape);
  const WalkDims dims = MergedDims(t.shape(), BroadcastStrides(t.shape(), t.shape()),
                                   BroadcastStrides(shape, t.shape()));
  if (!t.device().is_cpu()) {
    Tensor sums = Tensor::Empty(shape, t.dtype(), t.device());
    DeviceKernels<ReduceKernels>().sum(sums.raw_data(), t.raw_data(), t.dtype(), dims);
    return sums;
  }
  if (t.dtype() == DType::kBF16) {
    const Tensor sums = Tensor::Zeros(shape);
    AddAllOnThreads(t.data<BFloat16>(), sums.data<float>(), dims);
    return sums.To(DType::kBF16);
  }
  const Tensor sums = Tensor::Zeros(shape, t.dtype());
  DispatchFloat(t.dtype(), "sum_to_shape", [&](auto tag) {
    using T = decltype(tag);
    AddAllOnThreads(t.data<T>(), sums.data<T>(), dims);
  });
  return sums;
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
