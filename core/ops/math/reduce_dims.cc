#include "lathe/core/ops/math/reduce_dims.h"

#include <algorithm>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/cpu/rows/rows.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shaping/dimensions.h"
#include "lathe/core/ops/shaping/permute.h"
#include "lathe/core/ops/shaping/view.h"

namespace lathe {
namespace {

// y = factor * sums over the middle of x: (outer, n, inner), formed in double. y: (outer, inner).
template <typename From, typename To>
void SumMiddle(To* y, const From* x, int64_t outer, int64_t n, int64_t inner, double factor) {
  constexpr int64_t kStrip = 64;  // columns at a time
  constexpr int64_t kPart = 16384, kEnoughSums = 64;
  const int64_t strip = std::clamp<int64_t>(inner, 1, kStrip), strips = DivideUp(inner, strip);
  // Few sums over many elements are formed in parts, so that threads can share them.
  const int64_t length = outer * strips < kEnoughSums ? DivideUp(kPart, strip) : n;
  if (length < n) {
    const int64_t parts = DivideUp(n, length);
    std::vector<double> of_parts(static_cast<size_t>(outer * parts * inner));
    const int64_t whole = n / length;
#pragma omp parallel for schedule(static) if (outer * n * inner > kParallelSize)
    for (int64_t i = 0; i < outer * parts; ++i) {
      const int64_t part = i % parts;
      SumMiddle(of_parts.data() + i * inner, x + (i / parts * n + part * length) * inner, 1,
                part < whole ? length : n - part * length, inner, 1);
    }
    return SumMiddle(y, of_parts.data(), outer, parts, inner, factor);
  }
  if (inner == 1) {
    const auto sum = KernelsOf<From, cpu::RowKernels>(Device{}).sum;
#pragma omp parallel for schedule(static) if (outer * n > kParallelSize)
    for (int64_t o = 0; o < outer; ++o)
      cpu::Store(y[o], static_cast<MathType<To>>(sum(x + o * n, n) * factor));
    return;
  }
#pragma omp parallel for schedule(static) if (outer * n * inner > kParallelSize)
  for (int64_t item = 0; item < outer * strips; ++item) {
    const int64_t o = item / strips, first = item % strips * strip;
    const int64_t count = std::min(strip, inner - first);
    double sums[kStrip] = {};
    for (int64_t i = 0; i < n; ++i) {
      const From* const row = x + (o * n + i) * inner + first;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) sums[c] += cpu::Load(row[c]);
    }
    for (int64_t c = 0; c < count; ++c)
      cpu::Store(y[o * inner + first + c], static_cast<MathType<To>>(sums[c] * factor));
  }
}

// Writes factor * sums of x over `dims` to y, on the host. Neighbouring dimensions are reduced
// together, the last ones first.
template <typename T>
void SumDims(T* y, const T* x, Shape shape, const std::vector<int>& dims, double factor) {
  std::vector<double> sums;  // of the dimensions so far
  for (size_t end = dims.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && dims[begin - 1] == dims[begin] - 1) --begin;
    const auto first = static_cast<size_t>(dims[begin]), last = static_cast<size_t>(dims[end - 1]);
    const int64_t outer = SizeOfDims(shape, 0, first), n = SizeOfDims(shape, first, last + 1);
    const int64_t inner = SizeOfDims(shape, last + 1, shape.size());
    const auto sum = [&](auto* to, double scale) {
      if (end == dims.size()) return SumMiddle(to, x, outer, n, inner, scale);
      SumMiddle(to, sums.data(), outer, n, inner, scale);
    };
    if (begin == 0) {
      sum(y, factor);
    } else {
      std::vector<double> fewer(static_cast<size_t>(outer * inner));
      sum(fewer.data(), 1);
      sums = std::move(fewer);
      for (size_t d = first; d <= last; ++d) shape[d] = 1;
    }
    end = begin;
  }
}

// Returns x times `factor`, without a record.
Tensor Scaled(const Tensor& x, double factor) {
  return factor == 1 ? x.Detach() : Scale(x.Detach(), factor);
}

// y = factor * sums of x over dims;  dx = factor * dy, repeated
Tensor ScaledSum(const char* op, const Tensor& x, const std::vector<int>& dims, bool keepdim,
                 double factor) {
  const Shape kept = ReducedShape(x.shape(), dims, /*keepdim=*/true);
  const Shape shape = ReducedShape(x.shape(), dims, keepdim);
  return DispatchActivations(x, op, [&](auto tag) {
    using T = decltype(tag);
    Tensor y;
    if (kept == x.shape()) {
      y = Scaled(x, factor).Clone().Reshape(shape);
    } else if (x.device().is_cpu()) {
      y = Tensor::Empty(shape, x.dtype());
      SumDims(y.data<T>(), x.data<T>(), x.shape(), dims, factor);
    } else {
      // A sum of float16 may overflow where the mean does not.
      const Tensor wide = factor == 1 ? x.Detach() : x.Detach().To(DType::kF32);
      y = Scaled(SumToShape(wide, kept), factor).To(x.dtype()).Reshape(shape);
    }
    return Record(op, y, {x}, {}, [from = x.shape(), kept, factor](BackwardContext& context) {
      context.SetGrad(0, Expand(Scaled(context.grad_output(), factor).Reshape(kept), from));
    });
  });
}

// Returns of_last(x), which works on the last dimension, over dimension `dim`.
template <typename OfLast>
Tensor OverDim(const char* op, const Tensor& x, int dim, OfLast of_last) {
  const int d = CheckedDim(op, x.shape(), dim);
  if (d == x.ndim() - 1) return of_last(x);
  return Transpose(of_last(Transpose(x, d, -1)), d, -1);
}

}  // namespace

Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return ScaledSum("sum", x, CheckedDims("sum", x.shape(), dims), keepdim, 1);
}
Tensor Mean(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  const std::vector<int> reduced = CheckedDims("mean", x.shape(), dims);
  int64_t n = 1;
  for (const int d : reduced) n *= x.dim(d);
  return ScaledSum("mean", x, reduced, keepdim, 1.0 / static_cast<double>(n));
}

Tensor Softmax(const Tensor& x, int dim) { return OverDim("softmax", x, dim, SoftmaxLast); }
Tensor LogSoftmax(const Tensor& x, int dim) {
  return OverDim("log_softmax", x, dim, LogSoftmaxLast);
}

}  // namespace lathe
