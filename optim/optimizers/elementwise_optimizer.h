// ElementwiseOptimizer: an optimizer whose update of an element depends on that element alone, by a
// rule of core/kernels/update_rules.h. Its update can be sharded.
#pragma once

#include <string>
#include <vector>

#include "lathe/core/kernels/update_rules.h"
#include "lathe/optim/optimizer.h"

namespace lathe {

class ElementwiseOptimizer : public Optimizer {
 public:
  NamedSettings Settings() const override;

 protected:
  struct Method {
    NamedSettings settings;  // the optimizer's name and its own options
    RateRule rates;
    update_rules::Rule rule;
    // The names of the rule's moments in a StateDict; "" for one that is not kept.
    std::vector<std::string> moments;
    double initial = 0;  // the value of moments at first
  };
  ElementwiseOptimizer(std::vector<ParameterGroup> groups, double lr, double weight_decay,
                       Method method);

 private:
  void UpdateParameters() override;
  std::vector<Tensor*> StateBuffers() override;
  std::vector<std::string> StateNames() const override;
  double InitialState() const override { return method_.initial; }
  void AllocateState() override;
  void UpdateHostValues();

  Method method_;
  Tensor moments_[update_rules::kMaxMoments];  // [n] f32 each; undefined: not kept
};

}  // namespace lathe
