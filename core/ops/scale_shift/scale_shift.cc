#include "lathe/core/ops/scale_shift/scale_shift.h"

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/scale_shift/scale_shift.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {
namespace {

constexpr const char* kOp = "scale_shift";

void CheckInputs(const Tensor& x, const Tensor& residual, const Tensor& weight,
                 const Tensor& bias) {
  Check(x.ndim() == 2, kOp, "x must have shape [N, C] but has ", x.shape());
  if (residual.defined()) {
    Check(residual.shape() == x.shape() && residual.dtype() == x.dtype(), kOp,
          "residual must be like x, ", ToString(x.dtype()), " ", x.shape(), ", but is ",
          ToString(residual.dtype()), " ", residual.shape());
  }
  for (const Tensor& t : {weight, bias}) {
    Check(t.shape() == Shape({x.dim(1)}) && t.dtype() == MathDType(x.dtype()), kOp,
          "weight and bias must be ", ToString(MathDType(x.dtype())), " [", x.dim(1),
          "] but one is ", ToString(t.dtype()), " ", t.shape());
  }
  CheckSameDevice(kOp, x.device(), {residual, weight, bias});
}

// dx = dresidual = dz = dy weight;  dweight += sum dy z;  dbias += sum dy
// The inputs are x, residual (may be undefined), weight and bias, in this order.
template <typename T>
void ScaleShiftBackward(BackwardContext& context, const Tensor& z, const Tensor& weight) {
  using M = MathType<T>;
  const auto& kernels = KernelsOn<cpu::ScaleShiftKernels>(z.device());
  const int64_t rows = z.dim(0), n = z.dim(1);
  const Tensor dz = Tensor::Empty(z.shape(), z.dtype(), z.device());
  const Tensor partial =
      Tensor::Empty({kernels.chunks(rows, n), 2 * n}, weight.dtype(), z.device());
  // A gradient that nobody wants is computed, too, since it costs nearly nothing.
  const Tensor leaf_dw = context.NeedsInputGrad(2) ? context.LeafGrad(2) : Tensor();
  const Tensor leaf_db = context.NeedsInputGrad(3) ? context.LeafGrad(3) : Tensor();
  const auto or_fresh = [&](const Tensor& leaf) {
    return leaf.defined() ? leaf : Tensor::Zeros({n}, weight.dtype(), z.device());
  };
  const Tensor dw = or_fresh(leaf_dw), db = or_fresh(leaf_db);
  KernelsOf<T, cpu::ScaleShiftKernels>(z.device())
      .backward(dz.data<T>(), dw.data<M>(), db.data<M>(), partial.data<M>(),
                context.grad_output().template data<T>(), z.data<T>(), weight.data<M>(), rows, n);
  context.SetGrad(0, dz);
  if (context.NeedsInputGrad(1)) context.SetGrad(1, dz);
  if (context.NeedsInputGrad(2) && !leaf_dw.defined()) context.SetGrad(2, dw);
  if (context.NeedsInputGrad(3) && !leaf_db.defined()) context.SetGrad(3, db);
}

}  // namespace

Tensor ScaleShift(const Tensor& x, const Tensor& residual, const Tensor& weight,
                  const Tensor& bias) {
  CheckInputs(x, residual, weight, bias);
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    const bool adds = residual.defined();
    const Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
    const Tensor z = adds ? Tensor::Empty(x.shape(), x.dtype(), x.device()) : x.Detach();
    KernelsOf<T, cpu::ScaleShiftKernels>(x.device())
        .forward(y.data<T>(), adds ? z.data<T>() : nullptr, x.data<T>(),
                 adds ? residual.data<T>() : nullptr, weight.data<M>(), bias.data<M>(), x.dim(0),
                 x.dim(1));
    return Record(kOp, y, {x, residual, weight, bias}, {z, weight},
                  [z, weight = weight.Detach()](BackwardContext& context) {
                    ScaleShiftBackward<T>(context, z, weight);
                  });
  });
}

Tensor ScaleShiftComposed(const Tensor& x, const Tensor& residual, const Tensor& weight,
                          const Tensor& bias) {
  return Add(Mul(residual.defined() ? Add(x, residual) : x, weight), bias);
}

}  // namespace lathe
