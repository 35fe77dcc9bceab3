#include "lathe/examples/squared_relu.h"

#include <algorithm>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/device_kernels.h"

namespace {

class SquaredReluFunction : public lathe::Function {
 public:
  const char* name() const override { return "squared_relu"; }

  lathe::Tensor Forward(const std::vector<lathe::Tensor>& inputs) override {
    const lathe::Tensor& x = inputs[0];
    lathe::Check(x.dtype() == lathe::DType::kF32, "squared_relu", "x must be float32 but is ",
                 lathe::ToString(x.dtype()));
    Save({x});
    lathe::Tensor y = lathe::Tensor::Empty(x.shape(), x.dtype(), x.device());
    if (!x.device().is_cpu()) {
      lathe::DeviceKernels<SquaredReluKernels>().forward(y.data<float>(), x.data<float>(),
                                                         x.numel());
      return y;
    }
    for (int64_t i = 0; i < x.numel(); ++i) {
      const float positive = std::max(x.data<float>()[i], 0.0f);
      y.data<float>()[i] = positive * positive;
    }
    return y;
  }

  std::vector<lathe::Tensor> Backward(const lathe::Tensor& dy) override {
    const lathe::Tensor& x = saved(0);
    lathe::Tensor dx = lathe::Tensor::Empty(x.shape(), x.dtype(), x.device());
    if (!x.device().is_cpu()) {
      lathe::DeviceKernels<SquaredReluKernels>().backward(dx.data<float>(), dy.data<float>(),
                                                          x.data<float>(), x.numel());
      return {dx};
    }
    for (int64_t i = 0; i < x.numel(); ++i)
      dx.data<float>()[i] = 2 * std::max(x.data<float>()[i], 0.0f) * dy.data<float>()[i];
    return {dx};
  }
};

}  // namespace

lathe::Tensor SquaredRelu(const lathe::Tensor& x) { return lathe::Apply<SquaredReluFunction>({x}); }
