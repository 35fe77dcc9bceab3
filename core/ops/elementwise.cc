#include "lathe/core/ops/elementwise.h"

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/elementwise_functions.h"
#include "lathe/core/kernels/elementwise_kernels.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {
namespace {

// y_i = f(x_i)
template <typename F>
Tensor Map(const char* op, const Tensor& x, F f) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
  if (!x.device().is_cpu()) {
    DeviceKernels<MapKernel<F>>().run(op, f, y.raw_data(), x.raw_data(), x.dtype(), x.numel());
    return y;
  }
  DispatchFloat(x.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const int64_t n = x.numel();
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t i = 0; i < n; ++i) out[i] = f(in[i]);
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
  DispatchFloat(a.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    T* out = y.data<T>();
    const int64_t n = y.numel();
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t i = 0; i < n; ++i) out[i] = f(left[i], right[i]);
  });
  return y;
}

// y = f(a, b), broadcast. Works row by row along the last dimension. Within a row each operand has
// stride 1 or 0, so all inner loops vectorise.
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
  if (y.numel() == 0) return y;
  const Shape a_strides = BroadcastStrides(a.shape(), shape);
  const Shape b_strides = BroadcastStrides(b.shape(), shape);
  const int last = y.ndim() - 1;
  const int64_t columns = shape[last], rows = y.numel() / columns;
  DispatchFloat(a.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const T* a_data = a.data<T>();
    const T* b_data = b.data<T>();
    T* y_data = y.data<T>();
#pragma omp parallel for schedule(static) if (rows * columns > kParallelSize)
    for (int64_t row = 0; row < rows; ++row) {
      const T* left = a_data;
      const T* right = b_data;
      T* out = y_data + row * columns;
      int64_t rest = row;
      for (int d = last - 1; d >= 0; --d) {
        left += rest % shape[d] * a_strides[d];
        right += rest % shape[d] * b_strides[d];
        rest /= shape[d];
      }
      if (a_strides[last] != 0 && b_strides[last] != 0) {
        for (int64_t j = 0; j < columns; ++j) out[j] = f(left[j], right[j]);
      } else if (a_strides[last] != 0) {
        for (int64_t j = 0; j < columns; ++j) out[j] = f(left[j], *right);
      } else if (b_strides[last] != 0) {
        for (int64_t j = 0; j < columns; ++j) out[j] = f(*left, right[j]);
      } else {
        for (int64_t j = 0; j < columns; ++j) out[j] = f(*left, *right);
      }
    }
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

// y = min(max(x, low), high);  dx = dy where low <= x <= high, else 0
Tensor Clamp(const Tensor& x, const ClampOptions& options) {
  const auto [low, high] = options;
  Check(!std::isnan(low) && !std::isnan(high), "clamp", "min and max must be numbers but are ", low,
        " and ", high);
  Tensor y = Map("clamp", x, functions::Clamp{low, high});
  return Record(
      "clamp", y, {x}, {x}, [x = x.Detach(), low = low, high = high](BackwardContext& context) {
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
