#include "lathe/core/ops/activation.h"

#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {

ActivationKind ParseActivation(const std::string& name) {
  static const std::vector<std::pair<const char*, ActivationKind>> known = {
      {"gelu", ActivationKind::kGelu},
      {"gelu_python", ActivationKind::kGelu},
      {"gelu_new", ActivationKind::kGeluNew},
      {"gelu_pytorch_tanh", ActivationKind::kGeluNew},
      {"gelu_python_tanh", ActivationKind::kGeluNew},
      {"gelu_accurate", ActivationKind::kGeluNew},
      {"gelu_fast", ActivationKind::kGeluNew},
      {"gelu_10", ActivationKind::kGelu10},
      {"quick_gelu", ActivationKind::kQuickGelu},
      {"relu", ActivationKind::kRelu},
      {"relu2", ActivationKind::kRelu2},
      {"relu6", ActivationKind::kRelu6},
      {"leaky_relu", ActivationKind::kLeakyRelu},
      {"mish", ActivationKind::kMish},
      {"sigmoid", ActivationKind::kSigmoid},
      {"tanh", ActivationKind::kTanh},
      {"silu", ActivationKind::kSilu},
      {"swish", ActivationKind::kSilu},
      {"linear", ActivationKind::kNone},
  };
  std::string names;
  for (const auto& [known_name, kind] : known) {
    if (name == known_name) return kind;
    names += names.empty() ? known_name : std::string(", ") + known_name;
  }
  throw InvalidArgument("unknown activation \"" + name + "\"", "known activations: " + names);
}

Tensor Activation(const Tensor& x, ActivationKind activation) {
  if (activation == ActivationKind::kNone) return x;
  return DispatchActivations(x, "activation", [&](auto tag) {
    using T = decltype(tag);
    Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
    KernelsOf<T, cpu::ActivationKernels>(x.device())
        .forward(y.data<T>(), x.data<T>(), x.numel(), activation);
    return Record("activation", y, {x}, {x},
                  [x = x.Detach(), activation](BackwardContext& context) {
                    Tensor dx = Tensor::Empty(x.shape(), x.dtype(), x.device());
                    KernelsOf<T, cpu::ActivationKernels>(x.device())
                        .backward(dx.data<T>(), context.grad_output().template data<T>(),
                                  x.data<T>(), x.numel(), activation);
                    context.SetGrad(0, dx);
                  });
  });
}

}  // namespace lathe
