#include "lathe/core/ops/norm/rms_norm.h"

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/norm/rms_norm.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"

namespace lathe {

// y = x r w, r = 1 / sqrt(mean(x^2) + eps);  with g = dy w:
//   dx = r (g - x r mean(g x r));  dw = sum dy x r
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  constexpr const char* kOp = "rms_norm";
  Check(x.ndim() == 2 && x.dim(1) >= 1 && x.dim(1) <= 32768, kOp,
        "x must have shape [N, C] with C from 1 to 32768 but has ", x.shape());
  const int64_t rows = x.dim(0), n = x.dim(1);
  Check(weight.shape() == Shape({n}), kOp, "weight must have shape [", n, "] but has ",
        weight.shape());
  Check(weight.dtype() == MathDType(x.dtype()), kOp, "weight must be ",
        ToString(MathDType(x.dtype())), " for ", ToString(x.dtype()), " x but is ",
        ToString(weight.dtype()));
  CheckSameDevice(kOp, x.device(), {weight});
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    const cpu::RmsNormArgs args = {rows, n, eps};
    const Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
    const Tensor rstd = Tensor::Empty({rows}, MathDType(x.dtype()), x.device());
    KernelsOf<T, cpu::RmsNormKernels>(x.device())
        .forward(y.data<T>(), rstd.data<M>(), x.data<T>(), weight.data<M>(), args);
    return Record(
        kOp, y, {x, weight}, {x, weight},
        [args, rstd, x = x.Detach(), weight = weight.Detach()](BackwardContext& context) {
          const int64_t chunks =
              KernelsOn<cpu::RmsNormKernels>(x.device()).chunks(args.rows, args.n);
          const Tensor dx = Tensor::Empty(x.shape(), x.dtype(), x.device());
          const Tensor partial = Tensor::Empty({chunks, args.n}, rstd.dtype(), x.device());
          Tensor dw = context.LeafGrad(1);
          const bool own = context.NeedsInputGrad(1) && !dw.defined();
          if (own) dw = Tensor::Zeros({args.n}, rstd.dtype(), x.device());
          KernelsOf<T, cpu::RmsNormKernels>(x.device())
              .backward(dx.data<T>(), dw.defined() ? dw.data<M>() : nullptr, partial.data<M>(),
                        context.grad_output().template data<T>(), x.data<T>(), rstd.data<M>(),
                        weight.data<M>(), args);
          context.SetGrad(0, dx);
          if (own) context.SetGrad(1, dw);
        });
  });
}

Tensor RmsNormComposed(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor root = Sqrt(AddScalar(MeanLast(Mul(x, x)), eps));
  return Mul(Div(x, root), weight);
}

}  // namespace lathe
