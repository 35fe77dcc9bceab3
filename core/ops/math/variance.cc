#include "lathe/core/ops/math/variance.h"

#include <algorithm>
#include <limits>

#include "lathe/core/autograd.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/kernels/math/variance_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/dimensions.h"

namespace lathe {
namespace {

constexpr const char* kOp = "variance";

// The dimensions of x that are kept, or those that are reduced.
struct Part {
  Shape sizes, strides;  // outermost first

  int64_t Offset(int64_t i) const {
    int64_t offset = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return offset;
  }
};

// Returns the offsets of all elements of the part.
std::vector<int64_t> Offsets(const Part& part) {
  std::vector<int64_t> offsets(static_cast<size_t>(NumElements(part.sizes)));
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = part.Offset(static_cast<int64_t>(i));
  return offsets;
}

struct Parts {
  Part kept, reduced;
};

Parts PartsOf(const WalkDims& dims) {
  Parts parts;
  for (int d = 0; d < dims.count; ++d) {
    Part& part = dims.b_strides[d] != 0 ? parts.kept : parts.reduced;
    part.sizes.push_back(dims.sizes[d]);
    part.strides.push_back(dims.a_strides[d]);
  }
  return parts;
}

// Columns of matrices that lie one behind the other: reduced dimensions between kept ones.
struct Columns {
  int64_t outer = 1, n = 0, inner = 1;  // n: what is reduced

  // Returns columns, or n = 0 if the walk has not exactly one reduced dimension before kept ones.
  static Columns Of(const WalkDims& dims) {
    Columns columns;
    for (int d = 0; d < dims.count; ++d) {
      if (dims.b_strides[d] != 0) {
        (columns.n == 0 ? columns.outer : columns.inner) *= dims.sizes[d];
      } else if (columns.n == 0) {
        columns.n = dims.sizes[d];
      } else {
        return {};
      }
    }
    return columns.inner > 1 ? columns : Columns{};
  }
};

// Calls body(x's first element, the first kept place, the number of columns) for strips of columns,
// on several threads.
constexpr int64_t kStrip = 64;
template <typename Body>
void ForStrips(const Columns& columns, Body body) {
  const int64_t inner = columns.inner, strips = DivideUp(inner, kStrip);
#pragma omp parallel for schedule(static) if (columns.outer * columns.n * inner > kParallelSize)
  for (int64_t i = 0; i < columns.outer * strips; ++i) {
    const int64_t outer = i / strips, first = i % strips * kStrip;
    body(outer * columns.n * inner + first, outer * inner + first, std::min(kStrip, inner - first));
  }
}

template <typename T>
void ForwardOfColumns(T* y, MathType<T>* means, const T* x, double divisor,
                      const Columns& columns) {
  ForStrips(columns, [=](int64_t from, int64_t to, int64_t count) {
    double mean[kStrip] = {}, squares[kStrip] = {};
    for (int64_t i = 0; i < columns.n; ++i) {
      const T* const row = x + from + i * columns.inner;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) mean[c] += cpu::Load(row[c]);
    }
    for (int64_t c = 0; c < count; ++c) mean[c] /= static_cast<double>(columns.n);
    for (int64_t i = 0; i < columns.n; ++i) {
      const T* const row = x + from + i * columns.inner;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        const double distance = cpu::Load(row[c]) - mean[c];
        squares[c] += distance * distance;
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      means[to + c] = static_cast<MathType<T>>(mean[c]);
      cpu::Store(y[to + c], static_cast<MathType<T>>(squares[c] / divisor));
    }
  });
}

template <typename T>
void GradientOfColumns(T* dx, const T* dy, const T* x, const MathType<T>* means, double divisor,
                       const Columns& columns) {
  const auto factor = static_cast<MathType<T>>(2 / divisor);
  ForStrips(columns, [=](int64_t from, int64_t to, int64_t count) {
    for (int64_t i = 0; i < columns.n; ++i) {
      const T* const row = x + from + i * columns.inner;
      T* const out = dx + from + i * columns.inner;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        const MathType<T> scaled = cpu::Load(dy[to + c]) * factor;
        cpu::Store(out[c], scaled * (cpu::Load(row[c]) - means[to + c]));
      }
    }
  });
}

template <typename T>
void Forward(T* y, MathType<T>* means, const T* x, double divisor, const WalkDims& dims) {
  const Columns columns = Columns::Of(dims);
  if (columns.n > 0) return ForwardOfColumns(y, means, x, divisor, columns);
  const Parts parts = PartsOf(dims);
  const Part &kept = parts.kept, &reduced = parts.reduced;
  const std::vector<int64_t> offsets = Offsets(reduced);
  const int64_t m = NumElements(kept.sizes);
  const auto n = static_cast<int64_t>(offsets.size());
#pragma omp parallel for schedule(static) if (m * n > kParallelSize)
  for (int64_t r = 0; r < m; ++r) {
    const T* const from = x + kept.Offset(r);
    double sum = 0, squares = 0;
    for (const int64_t offset : offsets) sum += cpu::Load(from[offset]);
    const double mean = sum / static_cast<double>(n);
    for (const int64_t offset : offsets) {
      const double distance = cpu::Load(from[offset]) - mean;
      squares += distance * distance;
    }
    means[r] = static_cast<MathType<T>>(mean);
    cpu::Store(y[r], static_cast<MathType<T>>(squares / divisor));
  }
}

template <typename T>
void Gradient(T* dx, const T* dy, const T* x, const MathType<T>* means, double divisor,
              const WalkDims& dims) {
  const Columns columns = Columns::Of(dims);
  if (columns.n > 0) return GradientOfColumns(dx, dy, x, means, divisor, columns);
  const Parts parts = PartsOf(dims);
  const Part &kept = parts.kept, &reduced = parts.reduced;
  const std::vector<int64_t> offsets = Offsets(reduced);
  const int64_t m = NumElements(kept.sizes);
  const auto factor = static_cast<MathType<T>>(2 / divisor);
#pragma omp parallel for schedule(static) if (m * std::ssize(offsets) > kParallelSize)
  for (int64_t r = 0; r < m; ++r) {
    const int64_t at = kept.Offset(r);
    const MathType<T> scaled = cpu::Load(dy[r]) * factor;
    for (const int64_t offset : offsets) {
      cpu::Store(dx[at + offset], scaled * (cpu::Load(x[at + offset]) - means[r]));
    }
  }
}

// What the variance of x over `dims` divides by.
double DivisorOf(const Shape& shape, const std::vector<int>& dims, int64_t correction) {
  int64_t n = 1;
  for (const int d : dims) n *= shape[static_cast<size_t>(d)];
  return static_cast<double>(std::max<int64_t>(0, n - correction));
}

}  // namespace

// y = sum (x - mean)^2 / divisor;  dx = dy 2 (x - mean) / divisor
Tensor Variance(const Tensor& x, const std::vector<int>& dims, const VarianceOptions& options) {
  const std::vector<int> reduced = CheckedDims(kOp, x.shape(), dims);
  const Shape kept = ReducedShape(x.shape(), reduced, /*keepdim=*/true);
  const double divisor = DivisorOf(x.shape(), reduced, options.correction);
  const WalkDims walk = MergedDims(x.shape(), BroadcastStrides(x.shape(), x.shape()),
                                   BroadcastStrides(kept, x.shape()));
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y =
        Tensor::Empty(ReducedShape(x.shape(), reduced, options.keepdim), x.dtype(), x.device());
    const Tensor means = Tensor::Empty(kept, MathDType(x.dtype()), x.device());
    if (x.numel() == 0) {
      Tensor(y).Fill(std::numeric_limits<double>::quiet_NaN());
    } else if (x.device().is_cpu()) {
      Forward(y.data<T>(), means.data<MathType<T>>(), x.data<T>(), divisor, walk);
    } else {
      DeviceKernels<VarianceKernels>().forward(y.raw_data(), means.data<float>(), x.raw_data(),
                                               x.dtype(), divisor, walk);
    }
    return Record(kOp, y, {x}, {x},
                  [x = x.Detach(), means, divisor, walk](BackwardContext& context) {
                    const Tensor& dy = context.grad_output();
                    const Tensor dx = Tensor::Empty(x.shape(), x.dtype(), x.device());
                    if (x.numel() > 0 && x.device().is_cpu()) {
                      Gradient(dx.data<T>(), dy.data<T>(), x.data<T>(), means.data<MathType<T>>(),
                               divisor, walk);
                    } else if (x.numel() > 0) {
                      DeviceKernels<VarianceKernels>().backward(dx.raw_data(), dy.raw_data(),
                                                                x.raw_data(), means.data<float>(),
                                                                x.dtype(), divisor, walk);
                    }
                    context.SetGrad(0, dx);
                  });
  });
}

Tensor VarianceComposed(const Tensor& x, const std::vector<int>& dims,
                        const VarianceOptions& options) {
  const std::vector<int> reduced = CheckedDims(kOp, x.shape(), dims);
  const Shape kept = ReducedShape(x.shape(), reduced, /*keepdim=*/true);
  const double n = DivisorOf(x.shape(), reduced, 0);
  // Sums over dimensions, with a record.
  const auto sum = [&](const Tensor& t) {
    return Record("sum", SumToShape(t.Detach(), kept), {t}, {},
                  [shape = t.shape()](BackwardContext& context) {
                    const Tensor& dy = context.grad_output();
                    context.SetGrad(0, Add(Tensor::Zeros(shape, dy.dtype(), dy.device()), dy));
                  });
  };
  const Tensor centered = Sub(x, Div(sum(x), n));
  const Tensor y =
      Div(sum(Mul(centered, centered)), DivisorOf(x.shape(), reduced, options.correction));
  return Reshape(y, ReducedShape(x.shape(), reduced, options.keepdim));
}

}  // namespace lathe
