#include "lathe/core/ops/dropout.h"

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/dropout.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {

cpu::DropoutMask MaskOf(const DropoutSpec& spec, const char* op, int64_t rows, Device device) {
  Check(spec.p >= 0 && spec.p < 1, op, "dropout probability must be in [0, 1) but is ", spec.p);
  cpu::DropoutMask mask;
  if (spec.p == 0) return mask;
  mask.threshold = DropThreshold(spec.p);
  mask.scale = 1 / (1 - spec.p);
  mask.key0 = spec.key.key0();
  mask.key1 = spec.key.key1();
  mask.step = spec.key.step;
  if (spec.device_step.defined()) {
    Check(!device.is_cpu() && spec.device_step.device() == device, op,
          "device_step must lie on the activations' device, which must not be the host");
    mask.device_step = spec.device_step.data<int32_t>();
  }
  if (rows >= 0) {
    for (const Tensor& t : {spec.row_samples, spec.row_positions}) {
      Check(t.defined() && t.numel() >= rows && t.dtype() == DType::kI32, op,
            "row_samples and row_positions must be int32 of shape [N] with N at least ", rows,
            " but one is ", t.defined() ? ToString(t.dtype()) : "undefined",
            t.defined() ? " of shape " + ToString(t.shape()) : "");
    }
    CheckSameDevice(op, device, {spec.row_samples, spec.row_positions});
    mask.row_samples = spec.row_samples.data<int32_t>();
    mask.row_positions = spec.row_positions.data<int32_t>();
  }
  return mask;
}

namespace {

template <typename T>
Tensor Run(const Tensor& x, const DropoutSpec& spec) {
  Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
  const cpu::DropoutMask mask = MaskOf(spec, "dropout", x.dim(0), x.device());
  KernelsOf<T, cpu::DropoutKernels>(x.device())(x.data<T>(), y.data<T>(), x.dim(0), x.dim(1), mask);
  return y;
}

}  // namespace

Tensor Dropout(const Tensor& x, const DropoutSpec& spec) {
  if (spec.p == 0) return x;
  Check(x.ndim() == 2 && x.dim(1) <= 32768, "dropout",
        "x must have shape [N, C] with C at most 32768 but has ", x.shape());
  if (x.device().is_cpu() && x.dtype() == DType::kBF16) {
    return Cast(Dropout(Cast(x, DType::kF32), spec), DType::kBF16);
  }
  return DispatchActivations(x, "dropout", [&](auto tag) {
    using T = decltype(tag);
    return Record("dropout", Run<T>(x, spec), {x}, {}, [spec](BackwardContext& context) {
      context.SetGrad(0, Run<T>(context.grad_output(), spec));
    });
  });
}

Tensor DropoutComposed(const Tensor& x, const DropoutSpec& spec) {
  const int64_t rows = x.dim(0), n = x.dim(1), blocks = (n + 3) / 4;
  Tensor mask = Tensor::Zeros({rows, n}, DType::kF64);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const PhiloxBlock block =
          Philox4x32({{static_cast<uint32_t>(c % blocks),
                       static_cast<uint32_t>(spec.row_positions.data<int32_t>()[r]),
                       static_cast<uint32_t>(spec.row_samples.data<int32_t>()[r]), spec.key.step}},
                     spec.key.key0(), spec.key.key1());
      const bool kept = block.v[c / blocks] >= DropThreshold(spec.p);
      mask.data<double>()[r * n + c] = kept ? 1 / (1 - spec.p) : 0;
    }
  }
  return Mul(x, mask.To(x.dtype()));
}

}  // namespace lathe
