#include "lathe/core/ops/gated/gated_activation.h"

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/gated/gated.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"

namespace lathe {

// y = act(a) b;  da = dy b act'(a);  db = dy act(a)
Tensor GatedActivation(const Tensor& x, ActivationKind activation, GateHalves halves) {
  constexpr const char* kOp = "gated_activation";
  const bool columns = halves == GateHalves::kColumns;
  Check(x.ndim() == 2, kOp, "expected shape ", columns ? "[N, 2 I]" : "[2 N, I]", " but got ",
        x.shape());
  Check(x.dim(columns ? 1 : 0) % 2 == 0, kOp, "expected an even number of ",
        columns ? "columns" : "rows", " but got shape ", x.shape());
  const int64_t rows = columns ? x.dim(0) : x.dim(0) / 2, n = columns ? x.dim(1) / 2 : x.dim(1);
  const cpu::GatedArgs args = {.rows = rows, .n = n, .stride = x.dim(1), .kind = activation};
  const int64_t second = columns ? n : rows * n;  // where the second half begins
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Tensor::Empty({rows, n}, x.dtype(), x.device());
    if (y.numel() > 0) {
      KernelsOf<T, cpu::GatedKernels>(x.device())
          .forward(y.data<T>(), x.data<T>(), x.data<T>() + second, args);
    }
    return Record(kOp, y, {x}, {x}, [args, second, x = x.Detach()](BackwardContext& context) {
      const Tensor dx = Tensor::Empty(x.shape(), x.dtype(), x.device());
      if (dx.numel() > 0) {
        KernelsOf<T, cpu::GatedKernels>(x.device())
            .backward(dx.data<T>(), dx.data<T>() + second, context.grad_output().template data<T>(),
                      x.data<T>(), x.data<T>() + second, args);
      }
      context.SetGrad(0, dx);
    });
  });
}

Tensor GatedActivationComposed(const Tensor& x, ActivationKind activation, GateHalves halves) {
  if (halves == GateHalves::kColumns) {
    const int64_t I = x.dim(1) / 2;
    return Mul(Activation(SliceColumns(x, 0, I), activation), SliceColumns(x, I, 2 * I));
  }
  const int64_t N = x.dim(0) / 2;
  return Mul(Activation(SliceRows(x, 0, N), activation), SliceRows(x, N, 2 * N));
}

}  // namespace lathe
