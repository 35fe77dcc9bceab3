// Parameters with given values and gradients, for tests of optimizers.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lathe/nn/module.h"

namespace lathe {

inline Parameter MakeParameter(const std::string& name, std::vector<float> values, Shape shape,
                               bool decays = true) {
  return {.name = name,
          .tensor = Tensor::FromVector<float>(values, std::move(shape)).SetRequiresGrad(true),
          .init = {},
          .decays = decays};
}

inline void SetGrad(const Parameter& parameter, const std::vector<float>& values) {
  const Tensor grad = Tensor(parameter.tensor).MaterializeGrad();
  std::copy(values.begin(), values.end(), grad.data<float>());
}

}  // namespace lathe
