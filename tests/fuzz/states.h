// The state whose files the corpus holds.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/tensor.h"

namespace lathe::fuzz {

// Returns a state with numbers, a whole tensor, a part of one and a scalar.
inline StateDict SomeState() {
  StateDict state;
  state.values = {
      {"step", 3}, {"rates", {0.5, 0.25}}, {"best", -std::numeric_limits<double>::infinity()}};
  state.Add("moment/weight", Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}));
  state.tensors.push_back({"moment/stripe", Tensor::FromVector<float>({5, 6}, {2}), {4}, 1});
  state.Add("count", Tensor::FromVector<int64_t>({7}, {}));
  return state;
}

}  // namespace lathe::fuzz
