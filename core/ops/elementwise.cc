#include "lathe/core/ops/elementwise.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/elementwise/elementwise.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/elementwise_functions.h"
#include "lathe/core/kernels/elementwise_kernels.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {
namespace {

constexpr int64_t kAtOnce = 4096;  // elements that a thread computes at a time

// Return the host's function for elements of T, with the arguments of cpu::MapKernel and
// cpu::ZipKernel. For bfloat16 it takes at most kAtOnce elements, computes in float32 and rounds
// once.
template <typename T, typename F>
auto MapFor(const F& f) {
  if constexpr (!std::is_same_v<T, BFloat16>) {
    return cpu::MapOf<T>(f);
  } else {
    return [run = cpu::MapOf<float>(f)](const F& of, BFloat16* y, const BFloat16* x, int64_t n) {
      const auto& convert = cpu::Kernels<cpu::ConvertKernels>();
      float wide[kAtOnce];
      convert.to_f32(wide, x, n);
      run(of, wide, wide, n);
      convert.to_bf16(y, wide, n);
    };
  }
}

// Writes the elements of an operand of (rows, n) to `wide`, each once. Returns that as an operand.
cpu::ZipOperand<float> Widened(const cpu::ZipOperand<BFloat16>& x, int64_t rows, int64_t n,
                               float* wide) {
  const int64_t columns = x.stride == 0 ? 1 : n;
  const int64_t own_rows = x.row_stride == 0 ? 1 : rows;
  const auto to_f32 = cpu::Kernels<cpu::ConvertKernels>().to_f32;
  if (x.row_stride == columns) {  // the rows adjoin
    to_f32(wide, x.data, own_rows * columns);
  } else {
    for (int64_t r = 0; r < own_rows; ++r)
      to_f32(wide + r * columns, x.data + r * x.row_stride, columns);
  }
  return {wide, x.row_stride == 0 ? 0 : columns, x.stride};
}

template <typename T, typename F>
auto ZipFor(const F& f) {
  if constexpr (!std::is_same_v<T, BFloat16>) {
    return cpu::ZipOf<T>(f);
  } else {
    return [run = cpu::ZipOf<float>(f)](const F& of, BFloat16* y, cpu::ZipOperand<BFloat16> a,
                                        cpu::ZipOperand<BFloat16> b, int64_t rows, int64_t n) {
      float wide_a[kAtOnce], wide_b[kAtOnce], wide_y[kAtOnce];
      run(of, wide_y, Widened(a, rows, n, wide_a), Widened(b, rows, n, wide_b), rows, n);
      cpu::Kernels<cpu::ConvertKernels>().to_bf16(y, wide_y, rows * n);
    };
  }
}

// y_i = f(x_i)
template <typename F>
Tensor Map(const char* op, const Tensor& x, F f) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
  if (!x.device().is_cpu()) {
    DeviceKernels<MapKernel<F>>().run(op, f, y.raw_data(), x.raw_data(), x.dtype(), x.numel());
    return y;
  }
  DispatchOnHost(x, op, [&](auto tag) {
    using T = decltype(tag);
    const auto run = MapFor<T>(f);
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const int64_t n = x.numel();
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t i = 0; i < n; i += kAtOnce) run(f, out + i, in + i, std::min(kAtOnce, n - i));
  });
  return y;
}

// y = f(a, b), broadcast to `shape`, on a device
template <typename F>
Tensor BroadcastOnDevice(const char* op, const Tensor& a, const Tensor& b, const Shape& shape,
                         F f) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  Tensor y = Tensor::Empty(shape, a.dtype(), a.device());
  DeviceKernels<ZipKernel<F>>().run(
      op, f, y.raw_data(), a.raw_data(), b.raw_data(), a.dtype(),
      MergedDims(shape, BroadcastStrides(a.shape(), shape), BroadcastStrides(b.shape(), shape)));
  return y;
}

// y_i = f(a_i, b_i), both of one shape
template <typename F>
Tensor Zip(const char* op, const Tensor& a, const Tensor& b, F f) {
  if (!a.device().is_cpu()) return BroadcastOnDevice(op, a, b, a.shape(), f);
  Tensor y = Tensor::Empty(a.shape(), a.dtype(), a.device());
  DispatchOnHost(a, op, [&](auto tag) {
    using T = decltype(tag);
    const auto run = ZipFor<T>(f);
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    T* out = y.data<T>();
    const int64_t n = y.numel();
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t i = 0; i < n; i += kAtOnce)
      run(f, out + i, {left + i, 0, 1}, {right + i, 0, 1}, 1, std::min(kAtOnce, n - i));
  });
  return y;
}

// A part of a walk over a result and two operands: a matrix in the two innermost dimensions.
struct Block {
  int64_t place, a, b;  // the first elements, in the result and in the operands
  int64_t rows, columns;
  int64_t a_row_stride, b_row_stride, a_stride, b_stride;
};

// Calls body(block) for blocks of all elements, on several threads if there are many. Blocks have
// several rows only if these are short. Within a row an operand has stride 1 or 0.
template <typename Body>
void ForBlocks(const WalkDims& dims, Body body) {
  const int last = dims.count - 1, middle = dims.count - 2;
  const int64_t columns = last < 0 ? 1 : dims.sizes[last],
                rows = middle < 0 ? 1 : dims.sizes[middle];
  int64_t outer = 1;
  for (int d = 0; d < middle; ++d) outer *= dims.sizes[d];
  if (outer * rows * columns == 0) return;
  const int64_t most_columns = std::min(columns, kAtOnce), most_rows = kAtOnce / most_columns;
  const int64_t across = DivideUp(columns, most_columns), down = DivideUp(rows, most_rows);
  const int64_t blocks = outer * down * across;
#pragma omp parallel for schedule(static) if (outer * rows * columns > kParallelSize)
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t row = i / across % down * most_rows, column = i % across * most_columns;
    int64_t rest = i / across / down;
    Block block = {.place = (rest * rows + row) * columns + column,
                   .a = 0,
                   .b = 0,
                   .rows = std::min(most_rows, rows - row),
                   .columns = std::min(most_columns, columns - column),
                   .a_row_stride = middle < 0 ? 0 : dims.a_strides[middle],
                   .b_row_stride = middle < 0 ? 0 : dims.b_strides[middle],
                   .a_stride = last < 0 ? 0 : dims.a_strides[last],
                   .b_stride = last < 0 ? 0 : dims.b_strides[last]};
    block.a = row * block.a_row_stride + column * block.a_stride;
    block.b = row * block.b_row_stride + column * block.b_stride;
    for (int d = middle - 1; d >= 0; --d) {
      block.a += rest % dims.sizes[d] * dims.a_strides[d];
      block.b += rest % dims.sizes[d] * dims.b_strides[d];
      rest /= dims.sizes[d];
    }
    body(block);
  }
}

// y = f(a, b), broadcast
template <typename F>
Tensor Broadcast(const char* op, const Tensor& a, const Tensor& b, F f) {
  Check(a.dtype() == b.dtype(), op, "expected operands of one dtype but got ", ToString(a.dtype()),
        " and ", ToString(b.dtype()));
  Check(a.device() == b.device(), op, "expected operands on one device but got ",
        ToString(a.device()), " and ", ToString(b.device()));
  if (a.shape() == b.shape()) return Zip(op, a, b, f);
  const Shape shape = BroadcastShape(op, a.shape(), b.shape());
  if (!a.device().is_cpu()) return BroadcastOnDevice(op, a, b, shape, f);
  Tensor y = Tensor::Empty(shape, a.dtype(), a.device());
  const WalkDims dims =
      MergedDims(shape, BroadcastStrides(a.shape(), shape), BroadcastStrides(b.shape(), shape));
  DispatchOnHost(a, op, [&](auto tag) {
    using T = decltype(tag);
    const auto run = ZipFor<T>(f);
    ForBlocks(dims,
              [&, left = a.data<T>(), right = b.data<T>(), out = y.data<T>()](const Block& m) {
                run(f, out + m.place, {left + m.a, m.a_row_stride, m.a_stride},
                    {right + m.b, m.b_row_stride, m.b_stride}, m.rows, m.columns);
              });
  });
  return y;
}

}  // namespace

// y = a + b;  da = dy,  db = dy
Tensor Add(const Tensor& a, const Tensor& b) {
  Tensor y = Broadcast("add", a, b, functions::Add{});
  return Record("add", y, {a, b}, {}, [](BackwardContext& context) {
    context.SetGrad(0, context.grad_output());
    context.SetGrad(1, context.grad_output());
  });
}

// y = a - b;  da = dy,  db = -dy
Tensor Sub(const Tensor& a, const Tensor& b) {
  Tensor y = Broadcast("sub", a, b, functions::Sub{});
  return Record("sub", y, {a, b}, {}, [](BackwardContext& context) {
    context.SetGrad(0, context.grad_output());
    if (context.NeedsInputGrad(1)) context.SetGrad(1, Scale(context.grad_output(), -1));
  });
}

// y = a b;  da = dy b,  db = dy a
Tensor Mul(const Tensor& a, const Tensor& b) {
  Tensor y = Broadcast("mul", a, b, functions::Mul{});
  return Record("mul", y, {a, b}, {a, b},
                [a = a.Detach(), b = b.Detach()](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  if (context.NeedsInputGrad(0)) context.SetGrad(0, Mul(dy, b));
                  if (context.NeedsInputGrad(1)) context.SetGrad(1, Mul(dy, a));
                });
}

// y = a / b;  da = dy / b,  db = -dy y / b
Tensor Div(const Tensor& a, const Tensor& b) {
  Tensor y = Broadcast("div", a, b, functions::Div{});
  return Record("div", y, {a, b}, {b, y},
                [b = b.Detach(), y = y.Detach()](BackwardContext& context) {
                  const Tensor dy_over_b = Div(context.grad_output(), b);
                  context.SetGrad(0, dy_over_b);
                  if (context.NeedsInputGrad(1)) context.SetGrad(1, Scale(Mul(dy_over_b, y), -1));
                });
}

// y = a^b;  da = dy b a^(b - 1),  db = dy y ln a
Tensor Pow(const Tensor& base, const Tensor& exponent) {
  Tensor y = Broadcast("pow", base, exponent, functions::Pow{});
  return Record(
      "pow", y, {base, exponent}, {base, exponent},
      [a = base.Detach(), b = exponent.Detach()](BackwardContext& context) {
        const Tensor& dy = context.grad_output();
        if (context.NeedsInputGrad(0)) {
          context.SetGrad(0, Mul(dy, Broadcast("pow", a, b, functions::PowBaseDerivative{})));
        }
        if (context.NeedsInputGrad(1)) {
          context.SetGrad(1, Mul(dy, Broadcast("pow", a, b, functions::PowExponentDerivative{})));
        }
      });
}

namespace {

// y = F(a, b), one of the two;  da = dy Share(a, b),  db = dy Share(b, a)
template <typename F, typename Share>
Tensor Choose(const char* op, const Tensor& a, const Tensor& b, F f, Share share) {
  return Record(op, Broadcast(op, a, b, f), {a, b}, {a, b},
                [op, share, a = a.Detach(), b = b.Detach()](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  if (context.NeedsInputGrad(0))
                    context.SetGrad(0, Mul(dy, Broadcast(op, a, b, share)));
                  if (context.NeedsInputGrad(1))
                    context.SetGrad(1, Mul(dy, Broadcast(op, b, a, share)));
                });
}

}  // namespace

Tensor Maximum(const Tensor& a, const Tensor& b) {
  return Choose("maximum", a, b, functions::Maximum{}, functions::LargerShare{});
}
Tensor Minimum(const Tensor& a, const Tensor& b) {
  return Choose("minimum", a, b, functions::Minimum{}, functions::SmallerShare{});
}

Tensor SameMask(const Tensor& a, const Tensor& b) {
  return Broadcast("same_mask", a, b, functions::SameMask{});
}

// y = c x;  dx = c dy
Tensor Scale(const Tensor& x, double factor) {
  Tensor y = Map("scale", x, functions::Scale{factor});
  return Record("scale", y, {x}, {}, [factor](BackwardContext& context) {
    context.SetGrad(0, Scale(context.grad_output(), factor));
  });
}

// y = x + c;  dx = dy
Tensor AddScalar(const Tensor& x, double value) {
  Tensor y = Map("add_scalar", x, functions::AddScalar{value});
  return Record("add_scalar", y, {x}, {},
                [](BackwardContext& context) { context.SetGrad(0, context.grad_output()); });
}

// y = e^x;  dx = dy y
Tensor Exp(const Tensor& x) {
  Tensor y = Map("exp", x, functions::Exp{});
  return Record("exp", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    context.SetGrad(0, Mul(context.grad_output(), y));
  });
}

// y = ln x;  dx = dy / x
Tensor Log(const Tensor& x) {
  Tensor y = Map("log", x, functions::Log{});
  return Record("log", y, {x}, {x}, [x = x.Detach()](BackwardContext& context) {
    context.SetGrad(0, Div(context.grad_output(), x));
  });
}

// y = sqrt x;  dx = dy / (2 y)
Tensor Sqrt(const Tensor& x) {
  Tensor y = Map("sqrt", x, functions::Sqrt{});
  return Record("sqrt", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    context.SetGrad(0, Zip("sqrt", context.grad_output(), y, functions::SqrtGrad{}));
  });
}

// y = tanh x;  dx = dy (1 - y^2)
Tensor Tanh(const Tensor& x) {
  Tensor y = Map("tanh", x, functions::Tanh{});
  return Record("tanh", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    context.SetGrad(0, Zip("tanh", context.grad_output(), y, functions::TanhGrad{}));
  });
}

// y = 1 / (1 + e^-x);  dx = dy y (1 - y)
Tensor Sigmoid(const Tensor& x) {
  Tensor y = Map("sigmoid", x, functions::Sigmoid{});
  return Record("sigmoid", y, {x}, {y}, [y = y.Detach()](BackwardContext& context) {
    context.SetGrad(0, Zip("sigmoid", context.grad_output(), y, functions::SigmoidGrad{}));
  });
}

// y = erf x;  dx = dy 2/sqrt(pi) e^(-x^2)
Tensor Erf(const Tensor& x) {
  Tensor y = Map("erf", x, functions::Erf{});
  return Record("erf", y, {x}, {x}, [x = x.Detach()](BackwardContext& context) {
    context.SetGrad(0, Zip("erf", context.grad_output(), x, functions::ErfGrad{}));
  });
}

// y = max(x, 0);  dx = dy where x > 0, else 0
Tensor Relu(const Tensor& x) {
  Tensor y = Map("relu", x, functions::Relu{});
  return Record("relu", y, {x}, {x}, [x = x.Detach()](BackwardContext& context) {
    context.SetGrad(0, Zip("relu", context.grad_output(), x, functions::ReluGrad{}));
  });
}

// y = x / c;  dx = dy / c
Tensor Div(const Tensor& x, double divisor) {
  Tensor y = Map("div", x, functions::DivScalar{divisor});
  return Record("div", y, {x}, {}, [divisor](BackwardContext& context) {
    context.SetGrad(0, Div(context.grad_output(), divisor));
  });
}

// y = c / x;  dx = -dy y / x
Tensor Div(double numerator, const Tensor& x) {
  Tensor y = Map("div", x, functions::ScalarDiv{numerator});
  return Record("div", y, {x}, {x, y}, [x = x.Detach(), y = y.Detach()](BackwardContext& context) {
    context.SetGrad(0, Neg(Div(Mul(context.grad_output(), y), x)));
  });
}

// y = x^c;  dx = dy c x^(c - 1)
Tensor Pow(const Tensor& base, double exponent) {
  Tensor y = Map("pow", base, functions::PowScalar{exponent});
  return Record("pow", y, {base}, {base}, [x = base.Detach(), exponent](BackwardContext& context) {
    context.SetGrad(0, Zip("pow", context.grad_output(), x, functions::PowScalarGrad{exponent}));
  });
}

namespace {

// Returns the limit of Clamp that x's elements are compared with: narrow ones with a rounded one,
// as in PyTorch.
double LimitFor(const Tensor& x, double limit) {
  if (MathDType(x.dtype()) == x.dtype()) return limit;
  return Tensor::FromVector<double>({limit}).To(x.dtype()).Item();
}

}  // namespace

// y = min(max(x, low), high);  dx = dy where low < x < high, else 0
Tensor Clamp(const Tensor& x, const ClampOptions& options) {
  Check(!std::isnan(options.min) && !std::isnan(options.max), "clamp",
        "min and max must be numbers but are ", options.min, " and ", options.max);
  const double low = LimitFor(x, options.min), high = LimitFor(x, options.max);
  Tensor y = Map("clamp", x, functions::Clamp{low, high});
  return Record("clamp", y, {x}, {x}, [x = x.Detach(), low, high](BackwardContext& context) {
    context.SetGrad(0, Zip("clamp", context.grad_output(), x, functions::ClampGrad{low, high}));
  });
}

// y = -x;  dx = -dy
Tensor Neg(const Tensor& x) {
  return Record("neg", Map("neg", x, functions::Neg{}), {x}, {},
                [](BackwardContext& context) { context.SetGrad(0, Neg(context.grad_output())); });
}

// y = |x|;  dx = dy sign x
Tensor Abs(const Tensor& x) {
  Tensor y = Map("abs", x, functions::Abs{});
  return Record("abs", y, {x}, {x}, [x = x.Detach()](BackwardContext& context) {
    context.SetGrad(0, Zip("abs", context.grad_output(), x, functions::AbsGrad{}));
  });
}

}  // namespace lathe
