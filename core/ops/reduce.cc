#include "lathe/core/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/reduce_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {
namespace {

constexpr int64_t kChunk = 4096;  // elements of one partial sum

// Calls `body(in_row, out_row, in_columns)` for every row along x's last dimension. y has as many
// rows as x.
template <typename T, typename Body>
void ForRows(const Tensor& x, const Tensor& y, Body body) {
  if (x.numel() == 0) return;
  const int64_t columns = x.dim(-1), rows = x.numel() / columns, out_columns = y.numel() / rows;
  const T* in = x.data<T>();
  T* out = y.data<T>();
#pragma omp parallel for schedule(static) if (x.numel() > kParallelSize)
  for (int64_t r = 0; r < rows; ++r) body(in + r * columns, out + r * out_columns, columns);
}

void CheckLast(const char* op, const Tensor& x) {
  Check(x.ndim() >= 1, op, "expected at least one dimension but got a scalar");
}

// Sums in double, so that a long row of float32 loses no precision.
template <typename T>
double SumOf(const T* values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += values[i];
  return sum;
}

// Returns the maximum. If the row has a NaN, returns some element: the callers' sums are NaN then.
template <typename T>
T MaxOf(const T* values, int64_t n) {
  T max = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) max = values[i] <= max ? max : values[i];
  return max;
}

// Returns a tensor of `shape` that repeats the one element of `scalar`.
Tensor Repeated(const Tensor& scalar, const Shape& shape) {
  if (scalar.device().is_cpu()) {
    return Tensor::Full(shape, scalar.Item(), scalar.dtype(), scalar.device());
  }
  return Add(Tensor::Zeros(shape, scalar.dtype(), scalar.device()), scalar);
}

// Returns a tensor of x's shape. On the host `body(in_row, out_row, columns)` writes each row; on a
// device `kernel` writes all of them.
template <typename Kernel, typename Body>
Tensor MapRows(const char* op, const Tensor& x, Kernel kernel, Body body) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
  if (!x.device().is_cpu()) {
    const int64_t n = x.dim(-1), rows = n == 0 ? 0 : x.numel() / n;
    (DeviceKernels<ReduceKernels>().*kernel)(y.raw_data(), x.raw_data(), x.dtype(), rows, n);
    return y;
  }
  DispatchFloat(x.dtype(), op, [&](auto tag) { ForRows<decltype(tag)>(x, y, body); });
  return y;
}

template <typename T>
void Softmax(const T* in, T* out, int64_t n) {
  const T max = MaxOf(in, n);
  for (int64_t j = 0; j < n; ++j) out[j] = std::exp(in[j] - max);
  const T scale = static_cast<T>(1 / SumOf(out, n));
  for (int64_t j = 0; j < n; ++j) out[j] *= scale;
}

template <typename T>
void LogSoftmax(const T* in, T* out, int64_t n) {
  const T max = MaxOf(in, n);
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += std::exp(in[j] - max);
  const T log_sum = static_cast<T>(std::log(sum));
  for (int64_t j = 0; j < n; ++j) out[j] = in[j] - max - log_sum;
}

Tensor SumOfAll(const Tensor& x) {
  if (!x.device().is_cpu()) return SumToShape(x.Detach(), {});
  Tensor y = Tensor::Empty({}, x.dtype(), x.device());
  DispatchFloat(x.dtype(), "sum", [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.data<T>();
    const int64_t n = x.numel(), chunks = DivideUp(n, kChunk);
    std::vector<double> partial(static_cast<size_t>(chunks));
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t c = 0; c < chunks; ++c) {
      partial[c] = SumOf(in + c * kChunk, std::min(kChunk, n - c * kChunk));
    }
    *y.data<T>() = static_cast<T>(SumOf(partial.data(), chunks));
  });
  return y;
}

// Sums without a record for autograd. x: [..., N] -> [..., 1]
Tensor SumOfRows(const Tensor& x) {
  Shape shape = x.shape();
  shape.back() = 1;
  if (!x.device().is_cpu()) return SumToShape(x.Detach(), shape);
  Tensor y = Tensor::Zeros(shape, x.dtype(), x.device());
  DispatchFloat(x.dtype(), "sum_last", [&](auto tag) {
    using T = decltype(tag);
    ForRows<T>(x, y, [](const T* in, T* out, int64_t n) { *out = static_cast<T>(SumOf(in, n)); });
  });
  return y;
}

}  // namespace

// y = sum_i x_i;  dx_i = dy
Tensor Sum(const Tensor& x) {
  const AllocationTag allocation_tag = AllocationTag::Op("sum");
  Tensor y = SumOfAll(x);
  return Record("sum", y, {x}, {}, [shape = x.shape()](BackwardContext& context) {
    context.SetGrad(0, Repeated(context.grad_output(), shape));
  });
}

// y = sum_i x_i / n
Tensor Mean(const Tensor& x) { return Scale(Sum(x), 1.0 / static_cast<double>(x.numel())); }

// y_r = sum_j x_rj;  dx_rj = dy_r
Tensor SumLast(const Tensor& x) {
  CheckLast("sum_last", x);
  const AllocationTag allocation_tag = AllocationTag::Op("sum_last");
  Tensor y = SumOfRows(x);
  return Record("sum_last", y, {x}, {}, [shape = x.shape()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    context.SetGrad(0, Add(Tensor::Zeros(shape, dy.dtype(), dy.device()), dy));
  });
}

// y_r = sum_j x_rj / n
Tensor MeanLast(const Tensor& x) {
  CheckLast("mean_last", x);
  return Scale(SumLast(x), 1.0 / static_cast<double>(x.dim(-1)));
}

// y_rj = e^(x_rj - m_r) / sum_k e^(x_rk - m_r);  dx = y (dy - sum_k dy_k y_k)
Tensor SoftmaxLast(const Tensor& x) {
  CheckLast("softmax", x);
  Tensor y = MapRows("softmax", x, &ReduceKernels::softmax,
                     [](const auto* in, auto* out, int64_t n) { Softmax(in, out, n); });
  return Record("softmax", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    context.SetGrad(0, Mul(y, Sub(dy, SumLast(Mul(dy, y)))));
  });
}

// y_rj = x_rj - m_r - ln sum_k e^(x_rk - m_r);  dx = dy - e^y sum_k dy_k
Tensor LogSoftmaxLast(const Tensor& x) {
  CheckLast("log_softmax", x);
  Tensor y = MapRows("log_softmax", x, &ReduceKernels::log_softmax,
                     [](const auto* in, auto* out, int64_t n) { LogSoftmax(in, out, n); });
  return Record("log_softmax", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    context.SetGrad(0, Sub(dy, Mul(Exp(y), SumLast(dy))));
  });
}

}  // namespace lathe
