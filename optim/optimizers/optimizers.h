// More optimizers: Adam, Lion, RMSprop, Adagrad, LAMB and Adafactor. AdamW and SGD are in
// optim/optimizer.h, which also says what all have in common: groups, clipping, states, devices.
//
//   Lion optimizer(model.Parameters(), {.lr = 1e-4, .weight_decay = 0.1});
//   Backward(loss); optimizer.Step(); optimizer.ZeroGrad();
//
// Those that PyTorch has give its numbers, but for roundings. Constructors throw for options out of
// range.
#pragma once

#include <string>
#include <vector>

#include "lathe/optim/optimizers/elementwise_optimizer.h"

namespace lathe {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient, as in torch.optim.Adam
};
// Adam (Kingma and Ba 2015). AdamW decays the values themselves instead.
class Adam : public ElementwiseOptimizer {
 public:
  Adam(std::vector<Parameter> parameters, AdamOptions options);
  Adam(std::vector<ParameterGroup> groups, AdamOptions options);
};

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled
};
// Lion (Chen et al. 2023, algorithm 2): p -= lr * (sign(beta1 m + (1 - beta1) g) + wd * p), then m
// moves towards g by 1 - beta2.
class Lion : public ElementwiseOptimizer {
 public:
  Lion(std::vector<Parameter> parameters, LionOptions options);
  Lion(std::vector<ParameterGroup> groups, LionOptions options);
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  double momentum = 0;
  bool centered = false;  // divides by the standard deviation of the gradient
};
// torch.optim.RMSprop.
class RMSprop : public ElementwiseOptimizer {
 public:
  RMSprop(std::vector<Parameter> parameters, RMSpropOptions options);
  RMSprop(std::vector<ParameterGroup> groups, RMSpropOptions options);
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;      // the rate of update t is lr / (1 + (t - 1) * lr_decay)
  double weight_decay = 0;  // added to the gradient
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};
// torch.optim.Adagrad.
class Adagrad : public ElementwiseOptimizer {
 public:
  Adagrad(std::vector<Parameter> parameters, AdagradOptions options);
  Adagrad(std::vector<ParameterGroup> groups, AdagradOptions options);
};

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
};
// LAMB (You et al. 2020, algorithm 2), with the identity as phi and corrected biases:
//   r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + wd * p
//   p -= lr * |p| / |r| * r,  or lr * r if a norm is 0
// Norms are those of one parameter. It does not clip gradients, as some implementations do.
// Processes can't divide its update.
class Lamb : public Optimizer {
 public:
  Lamb(std::vector<Parameter> parameters, LambOptions options);
  Lamb(std::vector<ParameterGroup> groups, LambOptions options);
  NamedSettings Settings() const override;
  bool can_shard() const override { return false; }

 private:
  void UpdateParameters() override;
  std::vector<Tensor*> StateBuffers() override { return {&exp_avg_, &exp_avg_sq_}; }
  std::vector<std::string> StateNames() const override { return {"exp_avg", "exp_avg_sq"}; }
  void AllocateState() override;
  LambOptions options_;
  update_rules::Lamb rule_;
  RateRule rates_;
  Tensor exp_avg_, exp_avg_sq_;  // [n] f32
};

struct AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;  // the second moments take t^beta2_decay of update t's squares
  double eps1 = -1;           // negative: float32's epsilon, or 1e-30 for Transformers' rule
  double eps2 = 1e-3;         // the least root mean square of the values that scales a step
  double d = 1;               // the largest root mean square of an update
  double weight_decay = 0;    // decoupled
  // False: torch.optim.Adafactor, whose rate is at most 1 / sqrt(t) and relative to the values.
  // True: that of Transformers with scale_parameter and relative_step off, as Trainer has it. Then
  // lr is the rate and eps1 is added to squares.
  bool transformers = false;
};
// Adafactor (Shazeer and Stern 2018) without momentum. It keeps one number for each row and each
// column of the last two dimensions, and for each element of a vector. Processes can't divide its
// update.
class Adafactor : public Optimizer {
 public:
  Adafactor(std::vector<Parameter> parameters, AdafactorOptions options);
  Adafactor(std::vector<ParameterGroup> groups, AdafactorOptions options);
  NamedSettings Settings() const override;
  bool can_shard() const override { return false; }

 private:
  void UpdateParameters() override;
  std::vector<Tensor*> StateBuffers() override { return {}; }
  std::vector<std::string> StateNames() const override { return {}; }
  std::vector<OwnState> OwnStateOf(size_t range) override;
  void AllocateState() override;
  // Updates range i on the host.
  void Update(size_t i, const DeviceRates& rates, const float* grads);

  AdafactorOptions options_;
  update_rules::Adafactor rule_;
  RateRule rates_;
  std::vector<update_rules::FactoredShape> shapes_;  // of each range
  int64_t means_ = 0;                                // matrices of all ranges
  Tensor moments_;                                   // [sum of the shapes' sizes] f32
  Tensor shapes_there_;                              // [bytes] u8: shapes_ on the device
};

}  // namespace lathe
