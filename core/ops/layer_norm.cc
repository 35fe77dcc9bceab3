#include "lathe/core/ops/layer_norm.h"

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"

namespace lathe {
namespace {

void CheckInputs(const char* op, const Tensor& x, const Tensor& residual, const Tensor& weight,
                 const Tensor& bias) {
  Check(x.ndim() == 2 && x.dim(1) >= 1 && x.dim(1) <= 32768, op,
        "x must have shape [N, C] with C from 1 to 32768 but has ", x.shape());
  if (residual.defined()) {
    Check(residual.shape() == x.shape(), op, "residual must have shape ", x.shape(), " but has ",
          residual.shape());
    Check(residual.dtype() == x.dtype(), op, "residual must be ", ToString(x.dtype()), " but is ",
          ToString(residual.dtype()));
  }
  const int64_t n = x.dim(1);
  Check(weight.shape() == Shape({n}), op, "weight must have shape [", n, "] but has ",
        weight.shape());
  if (bias.defined()) {
    Check(bias.shape() == Shape({n}), op, "bias must have shape [", n, "] but has ", bias.shape());
  }
  for (const Tensor& t : {weight, bias}) {
    Check(!t.defined() || t.dtype() == MathDType(x.dtype()), op, "weight and bias must be ",
          ToString(MathDType(x.dtype())), " for ", ToString(x.dtype()), " x but one is ",
          t.defined() ? ToString(t.dtype()) : "");
  }
  CheckSameDevice(op, x.device(), {residual, weight, bias});
}

// The recorded op's inputs are x, residual, weight and bias, in this order. The residual and the
// bias may be undefined.
Tensor Run(const char* op, const Tensor& x, const Tensor& residual, const Tensor& weight,
           const Tensor& bias, double eps, const DropoutSpec& dropout) {
  CheckInputs(op, x, residual, weight, bias);
  const int64_t rows = x.dim(0), n = x.dim(1);
  return DispatchActivations(x, op, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    const DType math = MathDType(x.dtype());
    const bool plain = !residual.defined() && dropout.p == 0;  // z is x itself
    const cpu::LayerNormArgs args = {rows, n, eps, MaskOf(dropout, op, rows, x.device())};
    Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
    Tensor z = plain ? x.Detach() : Tensor::Empty(x.shape(), x.dtype(), x.device());
    Tensor mean = Tensor::Empty({rows}, math, x.device());
    Tensor rstd = Tensor::Empty({rows}, math, x.device());
    const Tensor added = bias.defined() ? bias : Tensor::Zeros({n}, math, x.device());
    KernelsOf<T, cpu::LayerNormKernels>(z.device())
        .forward(y.data<T>(), z.data<T>(), mean.data<M>(), rstd.data<M>(), x.data<T>(),
                 residual.defined() ? residual.data<T>() : nullptr, weight.data<M>(),
                 added.data<M>(), args);
    return Record(op, y, {x, residual, weight, bias}, {z, weight},
                  [=, weight = weight.Detach()](BackwardContext& context) {
                    const int64_t chunks =
                        KernelsOn<cpu::LayerNormKernels>(z.device()).chunks(rows, n);
                    Tensor dz = Tensor::Empty(z.shape(), z.dtype(), z.device());
                    const bool own_dx = dropout.p > 0 && context.NeedsInputGrad(0);
                    Tensor dx = own_dx ? Tensor::Empty(z.shape(), z.dtype(), z.device()) : dz;
                    Tensor partial = Tensor::Empty({chunks, 2 * n}, math, z.device());
                    Tensor dw, db;
                    if (context.NeedsInputGrad(2) || context.NeedsInputGrad(3)) {
                      dw = context.LeafGrad(2);
                      db = context.LeafGrad(3);
                    }
                    const bool own_dw = context.NeedsInputGrad(2) && !dw.defined();
                    const bool own_db = context.NeedsInputGrad(3) && !db.defined();
                    if (context.NeedsInputGrad(2) || context.NeedsInputGrad(3)) {
                      if (!dw.defined()) dw = Tensor::Zeros({n}, math, z.device());
                      if (!db.defined()) db = Tensor::Zeros({n}, math, z.device());
                    }
                    KernelsOf<T, cpu::LayerNormKernels>(z.device())
                        .backward(dz.data<T>(), own_dx ? dx.data<T>() : nullptr,
                                  dw.defined() ? dw.data<M>() : nullptr,
                                  db.defined() ? db.data<M>() : nullptr, partial.data<M>(),
                                  context.grad_output().template data<T>(), z.data<T>(),
                                  mean.data<M>(), rstd.data<M>(), weight.data<M>(), args);
                    context.SetGrad(0, dx);
                    if (context.NeedsInputGrad(1)) context.SetGrad(1, dz);
                    if (own_dw) context.SetGrad(2, dw);
                    if (own_db) context.SetGrad(3, db);
                  });
  });
}

}  // namespace

Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return Run("layer_norm", x, {}, weight, bias, eps, {});
}

Tensor DropoutAddLayerNorm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                           const Tensor& bias, double eps, const DropoutSpec& dropout) {
  return Run("dropout_add_layer_norm", x, residual, weight, bias, eps, dropout);
}

Tensor DropoutAddLayerNormComposed(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                   const Tensor& bias, double eps, const DropoutSpec& dropout) {
  const Tensor z = Add(Dropout(x, dropout), residual);
  const Tensor centred = Sub(z, MeanLast(z));
  const Tensor deviation = Sqrt(AddScalar(MeanLast(Mul(centred, centred)), eps));
  const Tensor scaled = Mul(Div(centred, deviation), weight);
  return bias.defined() ? Add(scaled, bias) : scaled;
}

}  // namespace lathe
