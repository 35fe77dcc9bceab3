// Functions without parameters as modules, for Sequential: activations, softmax and Flatten.
#pragma once

#include "lathe/core/ops/activation.h"
#include "lathe/nn/callable_module.h"

namespace lathe::nn {

// act(x), of x's shape.
class ActivationModule : public CallableModule<ActivationModule> {
 public:
  explicit ActivationModule(ActivationKind kind) : kind_(kind) {}
  Tensor Forward(const Tensor& x) const { return Activation(x, kind_); }

 private:
  ActivationKind kind_;
};

class ReLU : public ActivationModule {
 public:
  ReLU() : ActivationModule(ActivationKind::kRelu) {}
};
class Tanh : public ActivationModule {
 public:
  Tanh() : ActivationModule(ActivationKind::kTanh) {}
};
class SiLU : public ActivationModule {
 public:
  SiLU() : ActivationModule(ActivationKind::kSilu) {}
};
// x times the normal distribution's cumulative function, or with `tanh` its approximation.
class GELU : public ActivationModule {
 public:
  explicit GELU(bool tanh = false)
      : ActivationModule(tanh ? ActivationKind::kGeluNew : ActivationKind::kGelu) {}
};
class Sigmoid : public ActivationModule {
 public:
  Sigmoid() : ActivationModule(ActivationKind::kSigmoid) {}
};
class Mish : public ActivationModule {
 public:
  Mish() : ActivationModule(ActivationKind::kMish) {}
};
class Identity : public ActivationModule {
 public:
  Identity() : ActivationModule(ActivationKind::kNone) {}
};

// The next two take float32, on the host also float64, on devices also narrow types.
// Over the last dimension.
class Softmax : public CallableModule<Softmax> {
 public:
  Tensor Forward(const Tensor& x) const;
};
class LogSoftmax : public CallableModule<LogSoftmax> {
 public:
  Tensor Forward(const Tensor& x) const;
};

// Makes one dimension of those from start_dim to end_dim, both included. Negative numbers count
// from the end. Throws for dimensions that x does not have. [2, 3, 4] -> [2, 12] by default. A
// scalar becomes [1].
class Flatten : public CallableModule<Flatten> {
 public:
  explicit Flatten(int start_dim = 1, int end_dim = -1) : start_(start_dim), end_(end_dim) {}
  Tensor Forward(const Tensor& x) const;

 private:
  int start_, end_;
};

}  // namespace lathe::nn
