#include "lathe/core/ops/reduce.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/cpu/rows/rows.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/reduce_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {
namespace {

constexpr int64_t kChunk = 4096;  // elements of one partial sum

void CheckLast(const char* op, const Tensor& x) {
  Check(x.ndim() >= 1, op, "expected at least one dimension but got a scalar");
}

// Returns a tensor of `shape` that repeats the one element of `scalar`.
Tensor Repeated(const Tensor& scalar, const Shape& shape) {
  if (scalar.device().is_cpu()) {
    return Tensor::Full(shape, scalar.Item(), scalar.dtype(), scalar.device());
  }
  return Add(Tensor::Zeros(shape, scalar.dtype(), scalar.device()), scalar);
}

template <typename T>
auto SumKernel() {
  return KernelsOf<T, cpu::RowKernels>(Device{}).sum;
}
template <typename T>
const auto& SoftmaxKernels() {
  const cpu::RowKernels& kernels = cpu::Kernels<cpu::RowKernels>();
  if constexpr (std::is_same_v<T, float>) {
    return kernels.softmax_f32;
  } else {
    return kernels.softmax_f64;
  }
}

// Calls body(first, rows) for groups of x's rows, which are the runs of its last dimension. Threads
// share the groups.
template <typename Body>
void ForRowGroups(const Tensor& x, Body body) {
  if (x.numel() == 0) return;
  const int64_t columns = x.dim(-1), rows = x.numel() / columns;
  const int64_t at_once = std::max<int64_t>(kChunk / columns, 1);
#pragma omp parallel for schedule(static) if (x.numel() > kParallelSize)
  for (int64_t r = 0; r < rows; r += at_once) body(r, std::min(at_once, rows - r));
}

// Returns true for bfloat16 on the host, whose softmax is computed in float32 and rounded once.
bool IsNarrowOnHost(const Tensor& x) { return x.device().is_cpu() && x.dtype() == DType::kBF16; }

// Returns softmax or its logarithm. `kernel` computes it on a device.
template <typename Kernel, typename HostKernel>
Tensor MapRows(const char* op, const Tensor& x, Kernel kernel, HostKernel host) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  if (IsNarrowOnHost(x)) return MapRows(op, x.To(DType::kF32), kernel, host).To(x.dtype());
  Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
  if (!x.device().is_cpu()) {
    const int64_t n = x.dim(-1), rows = n == 0 ? 0 : x.numel() / n;
    (DeviceKernels<ReduceKernels>().*kernel)(y.raw_data(), x.raw_data(), x.dtype(), rows, n);
    return y;
  }
  DispatchFloat(x.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const auto run = host(SoftmaxKernels<T>());
    const int64_t n = x.dim(-1);
    ForRowGroups(x, [&, in = x.data<T>(), out = y.data<T>()](int64_t first, int64_t rows) {
      run(out + first * n, in + first * n, rows, n);
    });
  });
  return y;
}

// Returns the gradient on the host.
template <typename HostKernel>
Tensor GradOfRows(const char* op, const Tensor& dy, const Tensor& y, HostKernel host) {
  if (IsNarrowOnHost(y)) {
    return GradOfRows(op, dy.To(DType::kF32), y.To(DType::kF32), host).To(y.dtype());
  }
  Tensor dx = Tensor::Empty(y.shape(), y.dtype(), y.device());
  DispatchFloat(y.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const auto run = host(SoftmaxKernels<T>());
    const int64_t n = y.dim(-1);
    ForRowGroups(y, [&, out = dx.data<T>(), of_y = dy.data<T>(), at = y.data<T>()](int64_t first,
                                                                                   int64_t rows) {
      run(out + first * n, of_y + first * n, at + first * n, rows, n);
    });
  });
  return dx;
}

Tensor SumOfAll(const Tensor& x, const char* op) {
  if (!x.device().is_cpu()) return SumToShape(x.Detach(), {});
  Tensor y = Tensor::Empty({}, x.dtype(), x.device());
  DispatchOnHost(x, op, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.data<T>();
    const auto sum = SumKernel<T>();
    const int64_t n = x.numel(), chunks = DivideUp(n, kChunk);
    std::vector<double> partial(static_cast<size_t>(chunks));
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t c = 0; c < chunks; ++c) {
      partial[c] = sum(in + c * kChunk, std::min(kChunk, n - c * kChunk));
    }
    cpu::Store(*y.data<T>(), static_cast<MathType<T>>(SumKernel<double>()(partial.data(), chunks)));
  });
  return y;
}

Tensor RecordedSum(const Tensor& x, const char* op) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  Tensor y = SumOfAll(x, op);
  return Record(op, y, {x}, {}, [shape = x.shape()](BackwardContext& context) {
    context.SetGrad(0, Repeated(context.grad_output(), shape));
  });
}

// Sums without a record for autograd. x: [..., N] -> [..., 1]
Tensor SumOfRows(const Tensor& x) {
  Shape shape = x.shape();
  shape.back() = 1;
  if (!x.device().is_cpu()) return SumToShape(x.Detach(), shape);
  Tensor y = Tensor::Zeros(shape, x.dtype(), x.device());
  DispatchOnHost(x, "sum_last", [&](auto tag) {
    using T = decltype(tag);
    const auto sum = SumKernel<T>();
    const int64_t n = x.dim(-1);
    ForRowGroups(x, [&, in = x.data<T>(), out = y.data<T>()](int64_t first, int64_t rows) {
      for (int64_t r = first; r < first + rows; ++r)
        cpu::Store(out[r], static_cast<MathType<T>>(sum(in + r * n, n)));
    });
  });
  return y;
}

// Returns a tensor of `shape` whose rows each repeat an element of dy: [..., 1]. On the host.
Tensor RepeatedRows(const Tensor& dy, const Shape& shape) {
  const Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
  DispatchOnHost(dx, "sum_last", [&](auto tag) {
    using T = decltype(tag);
    const int64_t n = dx.dim(-1);
    ForRowGroups(dx, [&, out = dx.data<T>(), in = dy.data<T>()](int64_t first, int64_t rows) {
      for (int64_t r = first; r < first + rows; ++r) {
        const T value = in[r];
        T* const row = out + r * n;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) row[i] = value;
      }
    });
  });
  return dx;
}

}  // namespace

// y = sum_i x_i;  dx_i = dy
Tensor Sum(const Tensor& x) { return RecordedSum(x, "sum"); }

// y = sum_i x_i / n
Tensor Mean(const Tensor& x) {
  if (MathDType(x.dtype()) != x.dtype()) return Cast(Mean(Widen(x)), x.dtype());  // rounds once
  return Scale(RecordedSum(x, "mean"), 1.0 / static_cast<double>(x.numel()));
}

// y_r = sum_j x_rj;  dx_rj = dy_r
Tensor SumLast(const Tensor& x) {
  CheckLast("sum_last", x);
  const AllocationTag allocation_tag = AllocationTag::Op("sum_last");
  Tensor y = SumOfRows(x);
  return Record("sum_last", y, {x}, {}, [shape = x.shape()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    context.SetGrad(0, dy.device().is_cpu()
                           ? RepeatedRows(dy, shape)
                           : Add(Tensor::Zeros(shape, dy.dtype(), dy.device()), dy));
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
                     [](const auto& kernels) { return kernels.softmax; });
  return Record("softmax", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    if (!y.device().is_cpu()) return context.SetGrad(0, Mul(y, Sub(dy, SumLast(Mul(dy, y)))));
    context.SetGrad(
        0, GradOfRows("softmax", dy, y, [](const auto& kernels) { return kernels.softmax_grad; }));
  });
}

// y_rj = x_rj - m_r - ln sum_k e^(x_rk - m_r);  dx = dy - e^y sum_k dy_k
Tensor LogSoftmaxLast(const Tensor& x) {
  CheckLast("log_softmax", x);
  Tensor y = MapRows("log_softmax", x, &ReduceKernels::log_softmax,
                     [](const auto& kernels) { return kernels.log_softmax; });
  return Record("log_softmax", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    if (!y.device().is_cpu()) return context.SetGrad(0, Sub(dy, Mul(Exp(y), SumLast(dy))));
    context.SetGrad(0, GradOfRows("log_softmax", dy, y,
                                  [](const auto& kernels) { return kernels.log_softmax_grad; }));
  });
}

}  // namespace lathe
