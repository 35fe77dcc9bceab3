#include "lathe/core/ops/math/extremes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lathe/core/autograd.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/cpu/rows/rows.h"
#include "lathe/core/kernels/math/extremes_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/dimensions.h"

namespace lathe {
namespace {

template <typename T>
const cpu::RowKernels::ForType<T>& RowKernelsOf() {
  return KernelsOf<T, cpu::RowKernels>(Device{});
}

// Returns true if v comes before w, so that of equal elements neither does.
template <typename M>
bool Before(M v, M w, const SelectArgs& args) {
  if (std::isnan(v)) return args.nan_first && !std::isnan(w);
  if (std::isnan(w)) return !args.nan_first;
  return args.largest ? v > w : v < w;
}

// Returns the place of a row's first extreme element, or of its first NaN.
template <bool kLargest, typename T>
int64_t PlaceInRow(const T* row, int64_t n) {
  using M = MathType<T>;
  M best = cpu::Load(row[0]);
  int nans = 0;
  if constexpr (kLargest) {
#pragma omp simd reduction(max : best) reduction(| : nans)
    for (int64_t i = 0; i < n; ++i) {
      const M value = cpu::Load(row[i]);
      best = value > best ? value : best;
      nans |= value != value;
    }
  } else {
#pragma omp simd reduction(min : best) reduction(| : nans)
    for (int64_t i = 0; i < n; ++i) {
      const M value = cpu::Load(row[i]);
      best = value < best ? value : best;
      nans |= value != value;
    }
  }
  return std::find_if(row, row + n,
                      [&](const T& element) {
                        const M value = cpu::Load(element);
                        return nans != 0 ? std::isnan(value) : value == best;
                      }) -
         row;
}

template <typename T>
void SelectInRows(T* values, int64_t* indices, const T* x, const SelectArgs& args) {
#pragma omp parallel for schedule(static) if (args.outer * args.n > kParallelSize)
  for (int64_t r = 0; r < args.outer; ++r) {
    const T* const row = x + r * args.n;
    const int64_t place =
        args.largest ? PlaceInRow<true>(row, args.n) : PlaceInRow<false>(row, args.n);
    values[r] = row[place];
    if (indices != nullptr) indices[r] = place;
  }
}

// Writes the first element of each column. A thread takes up to kColumns neighbouring columns at a
// time.
template <typename T>
void SelectFirst(T* values, int64_t* indices, const T* x, const SelectArgs& args) {
  constexpr int64_t kColumns = 64;
  const int64_t strips = DivideUp(args.inner, kColumns);
#pragma omp parallel for schedule(static) if (args.outer * args.n * args.inner > kParallelSize)
  for (int64_t item = 0; item < args.outer * strips; ++item) {
    const int64_t first = item % strips * kColumns, count = std::min(kColumns, args.inner - first);
    const T* const from = x + item / strips * args.n * args.inner + first;
    const int64_t to = item / strips * args.inner + first;
    MathType<T> best[kColumns] = {};
    int64_t places[kColumns] = {};
    for (int64_t c = 0; c < count; ++c) best[c] = cpu::Load(from[c]);
    for (int64_t i = 1; i < args.n; ++i) {
      for (int64_t c = 0; c < count; ++c) {
        const MathType<T> value = cpu::Load(from[i * args.inner + c]);
        if (!Before(value, best[c], args)) continue;
        best[c] = value;
        places[c] = i;
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      values[to + c] = from[places[c] * args.inner + c];
      if (indices != nullptr) indices[to + c] = places[c];
    }
  }
}

template <typename T>
void SelectSome(T* values, int64_t* indices, const T* x, const SelectArgs& args) {
#pragma omp parallel for schedule(static) if (args.outer * args.n * args.inner > kParallelSize)
  for (int64_t column = 0; column < args.outer * args.inner; ++column) {
    const int64_t outer = column / args.inner, inner = column % args.inner;
    const auto at = [&](int64_t i) { return (outer * args.n + i) * args.inner + inner; };
    std::vector<int64_t> order(static_cast<size_t>(args.n));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + args.k, order.end(),
                      [&](int64_t i, int64_t j) {
                        const auto v = cpu::Load(x[at(i)]), w = cpu::Load(x[at(j)]);
                        return Before(v, w, args) || (!Before(w, v, args) && i < j);
                      });
    for (int64_t j = 0; j < args.k; ++j) {
      const int64_t to = (outer * args.k + j) * args.inner + inner;
      values[to] = x[at(order[static_cast<size_t>(j)])];
      indices[to] = order[static_cast<size_t>(j)];
    }
  }
}

// Writes dy to its places in dx.
template <typename T>
void Scatter(T* dx, const T* dy, const int64_t* indices, const SelectArgs& args) {
  for (int64_t i = 0; i < args.outer * args.k * args.inner; ++i) {
    const int64_t outer = i / (args.k * args.inner), inner = i % args.inner;
    dx[(outer * args.n + indices[i]) * args.inner + inner] = dy[i];
  }
}

// Writes the first extreme element of each column, or its first NaN. Threads take strips of
// columns.
template <typename T>
void SelectInColumns(T* values, int64_t* indices, const T* x, const SelectArgs& args) {
  constexpr int64_t kColumns = 256;
  const auto extremes = RowKernelsOf<T>().extremes;
  const int64_t strips = DivideUp(args.inner, kColumns);
#pragma omp parallel for schedule(static) if (args.outer * args.n * args.inner > kParallelSize)
  for (int64_t item = 0; item < args.outer * strips; ++item) {
    const int64_t first = item % strips * kColumns, outer = item / strips;
    const int64_t to = outer * args.inner + first;
    extremes(values + to, indices == nullptr ? nullptr : indices + to,
             x + outer * args.n * args.inner + first, args.n,
             std::min(kColumns, args.inner - first), args.inner, args.largest);
  }
}

SelectArgs ArgsOf(const char* op, const Tensor& x, int begin, int end, bool largest) {
  const auto first = static_cast<size_t>(begin), last = static_cast<size_t>(end);
  const SelectArgs args = {.outer = SizeOfDims(x.shape(), 0, first),
                           .n = SizeOfDims(x.shape(), first, last),
                           .inner = SizeOfDims(x.shape(), last, x.shape().size()),
                           .largest = largest};
  Check(args.n > 0, op, "there are no elements to choose from in shape ", x.shape());
  return args;
}

// Returns the values, and the indices unless null, in tensors of `shape`. Without a record.
Tensor Select(const char* op, const Tensor& x, const SelectArgs& args, const Shape& shape,
              Tensor* indices) {
  return DispatchActivations(x, op, [&](auto tag) {
    using T = decltype(tag);
    const Tensor values = Tensor::Empty(shape, x.dtype(), x.device());
    if (indices != nullptr) *indices = Tensor::Empty(shape, DType::kI64, x.device());
    int64_t* const places = indices == nullptr ? nullptr : indices->data<int64_t>();
    if (!x.device().is_cpu()) {
      DeviceKernels<ExtremesKernels>().select(values.raw_data(), places, x.raw_data(), x.dtype(),
                                              args);
    } else if (args.k == 1 && args.inner == 1 && args.nan_first) {
      SelectInRows(values.data<T>(), places, x.data<T>(), args);
    } else if (args.k == 1 && args.nan_first && args.n <= std::numeric_limits<int32_t>::max()) {
      SelectInColumns(values.data<T>(), places, x.data<T>(), args);
    } else if (args.k == 1) {
      SelectFirst(values.data<T>(), places, x.data<T>(), args);
    } else {
      SelectSome(values.data<T>(), places, x.data<T>(), args);
    }
    return values;
  });
}

// y = x at the indices;  dx = dy there, 0 elsewhere
ValuesAndIndices Selected(const char* op, const Tensor& x, const SelectArgs& args,
                          const Shape& shape) {
  ValuesAndIndices result;
  Tensor values = Select(op, x, args, shape, &result.indices);
  result.values =
      Record(op, values, {x}, {result.indices},
             [op, args, indices = result.indices, shape = x.shape()](BackwardContext& context) {
               const Tensor& dy = context.grad_output();
               const Tensor dx = Tensor::Zeros(shape, dy.dtype(), dy.device());
               DispatchActivations(dy, op, [&](auto tag) {
                 using T = decltype(tag);
                 const int64_t* const places = indices.data<int64_t>();
                 if (dy.device().is_cpu()) return Scatter(dx.data<T>(), dy.data<T>(), places, args);
                 DeviceKernels<ExtremesKernels>().scatter(dx.raw_data(), dy.raw_data(), places,
                                                          dy.dtype(), args);
               });
               context.SetGrad(0, dx);
             });
  return result;
}

ValuesAndIndices Reduce(const char* op, const Tensor& x, int dim, bool keepdim, bool largest) {
  const int d = CheckedDim(op, x.shape(), dim);
  return Selected(op, x, ArgsOf(op, x, d, d + 1, largest), ReducedShape(x.shape(), {d}, keepdim));
}

Tensor Arg(const char* op, const Tensor& x, int dim, bool keepdim, bool largest) {
  const int d = CheckedDim(op, x.shape(), dim);
  Tensor indices;
  Select(op, x, ArgsOf(op, x, d, d + 1, largest), ReducedShape(x.shape(), {d}, keepdim), &indices);
  return indices;
}

Tensor ArgOfAll(const char* op, const Tensor& x, bool largest) {
  Tensor indices;
  Select(op, x, ArgsOf(op, x, 0, x.ndim(), largest), {}, &indices);
  return indices;
}

// y = max x over dimensions;  dx = dy / n where x = y, else 0. n is the number of such elements.
Tensor ReduceEvenly(const char* op, const Tensor& x, const std::vector<int>& dims, bool keepdim,
                    bool largest) {
  const std::vector<int> reduced = CheckedDims(op, x.shape(), dims);
  for (const int d : reduced)
    Check(x.dim(d) > 0, op, "there are no elements to choose from in shape ", x.shape());
  Tensor y = x.Detach();
  // Neighbouring dimensions are reduced together.
  for (size_t end = reduced.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && reduced[begin - 1] == reduced[begin] - 1) --begin;
    const std::vector<int> run(reduced.begin() + static_cast<int64_t>(begin),
                               reduced.begin() + static_cast<int64_t>(end));
    y = Select(op, y, ArgsOf(op, y, run.front(), run.back() + 1, largest),
               ReducedShape(y.shape(), run, /*keepdim=*/true), nullptr);
    end = begin;
  }
  const Shape kept = ReducedShape(x.shape(), reduced, /*keepdim=*/true);
  if (reduced.empty()) y = y.Clone();  // a scalar: the result is no view
  if (!keepdim) y = y.Reshape(ReducedShape(x.shape(), reduced, /*keepdim=*/false));
  return Record(op, y, {x}, {x, y},
                [x = x.Detach(), y = y.Detach(), kept](BackwardContext& context) {
                  const Tensor dy = context.grad_output().Reshape(kept);
                  // Narrow types can't hold large numbers of equal elements.
                  const Tensor chosen = SameMask(Widen(x), Widen(y).Reshape(kept));
                  const Tensor share = Div(Widen(dy), SumToShape(chosen, kept));
                  context.SetGrad(0, Mul(chosen, share).To(x.dtype()));
                });
}

}  // namespace

ValuesAndIndices Max(const Tensor& x, int dim, bool keepdim) {
  return Reduce("max", x, dim, keepdim, /*largest=*/true);
}
ValuesAndIndices Min(const Tensor& x, int dim, bool keepdim) {
  return Reduce("min", x, dim, keepdim, /*largest=*/false);
}
Tensor ArgMax(const Tensor& x, int dim, bool keepdim) {
  return Arg("argmax", x, dim, keepdim, /*largest=*/true);
}
Tensor ArgMin(const Tensor& x, int dim, bool keepdim) {
  return Arg("argmin", x, dim, keepdim, /*largest=*/false);
}

Tensor Max(const Tensor& x) { return ReduceEvenly("max", x, {}, false, /*largest=*/true); }
Tensor Min(const Tensor& x) { return ReduceEvenly("min", x, {}, false, /*largest=*/false); }
Tensor ArgMax(const Tensor& x) { return ArgOfAll("argmax", x, /*largest=*/true); }
Tensor ArgMin(const Tensor& x) { return ArgOfAll("argmin", x, /*largest=*/false); }

Tensor AMax(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return ReduceEvenly("amax", x, dims, keepdim, /*largest=*/true);
}
Tensor AMin(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return ReduceEvenly("amin", x, dims, keepdim, /*largest=*/false);
}

ValuesAndIndices TopK(const Tensor& x, int64_t k, int dim, bool largest) {
  const int d = CheckedDim("topk", x.shape(), dim);
  Check(k >= 0 && k <= x.dim(d), "topk", "k must be at most ", x.dim(d), ", the size of dimension ",
        dim, " of shape ", x.shape(), ", but is ", k);
  SelectArgs args = {.outer = SizeOfDims(x.shape(), 0, static_cast<size_t>(d)),
                     .n = x.dim(d),
                     .inner = SizeOfDims(x.shape(), static_cast<size_t>(d) + 1, x.shape().size()),
                     .k = k,
                     .largest = largest,
                     .nan_first = largest};
  Shape shape = x.shape();
  shape[static_cast<size_t>(d)] = k;
  return Selected("topk", x, args, shape);
}

}  // namespace lathe
