// A small network and the optimizers that the tests of update graphs train it with.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/module.h"
#include "lathe/optim/optimizer.h"

namespace lathe {

// Two layers and their input. `third` has a gradient only in passes that ask for it.
struct TwoLayers : Module {
  explicit TwoLayers(DType compute) {
    first = RegisterParameter("first", {90, 70}, Init::Zeros());
    second = RegisterParameter("second", {3, 90}, Init::Zeros());
    third = RegisterParameter("third", {3}, Init::Zeros());
    Initialize(1);
    float v = 0;
    for (Tensor* p : {&first, &second, &third}) {
      for (float& w : p->values<float>()) w = std::sin(v += 1.7f) / 9;
    }
    std::vector<float> values(7 * 70);
    for (float& w : values) w = std::cos(v += 0.9f);
    x = Tensor::FromVector(values, {7, 70}).To(compute);
  }
  Tensor Loss(bool with_third) const {
    const Tensor on = x.To(first.device());
    const Tensor hidden = Tanh(Linear(on, first, {}));
    const Tensor y = Linear(hidden, second, with_third ? third : Tensor());
    return Mean(Mul(y, y));
  }
  Tensor first, second, third, x;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(TwoLayers&)>;

// Returns two groups with different rates and decays.
inline std::vector<ParameterGroup> TwoGroups(TwoLayers& net) {
  std::vector<ParameterGroup> groups(2);
  groups[0].lr = 0.02;
  groups[0].weight_decay = 0.3;
  for (const Parameter& p : net.Parameters()) {
    groups[p.name == "second" ? 0 : 1].parameters.push_back(p);
  }
  return groups;
}

inline const std::vector<MakeOptimizer> kMakeOptimizers = {
    [](TwoLayers& net) {
      return std::make_unique<AdamW>(net.Parameters(), AdamWOptions{.lr = 0.01});
    },
    [](TwoLayers& net) {
      return std::make_unique<AdamW>(
          TwoGroups(net), AdamWOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6});
    },
    [](TwoLayers& net) { return std::make_unique<SGD>(net.Parameters(), SGDOptions{.lr = 0.1}); },
    [](TwoLayers& net) {
      return std::make_unique<SGD>(TwoGroups(net),
                                   SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.25});
    },
    [](TwoLayers& net) {
      return std::make_unique<SGD>(
          TwoGroups(net),
          SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
    }};

}  // namespace lathe
