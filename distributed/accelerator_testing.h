// Options, data and models with known gradients for tests of the Accelerator.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {

using Env = ProcessEnvironment;

inline AcceleratorOptions Options(const Env& env) {
  return {.environment = env, .timeout = std::chrono::seconds(20)};
}

// Returns n sequences. Sequence i has i % 7 + 1 tokens and class i % 2.
inline TokenizedDataset Data(int64_t n) {
  TokenizedDataset data;
  data.has_labels = true;
  data.num_labels = 2;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t t = 0; t <= i % 7; ++t) data.input_ids.push_back(static_cast<int32_t>(i));
    data.token_type_ids.resize(data.input_ids.size());
    data.offsets.push_back(std::ssize(data.input_ids));
    data.classes.push_back(i % 2);
  }
  return data;
}

// A model with one weight w. The loss of a share is the mean of w * (index of the sample + 1).
struct Slope : Module {
  Slope() : weight(RegisterParameter("weight", {1, 1}, Init::Ones())) {}
  Tensor Loss(const std::vector<int64_t>& indices) const {
    std::vector<float> x;
    for (const int64_t i : indices) x.push_back(static_cast<float>(i + 1));
    const Tensor y = Linear(Tensor::FromVector(x, {std::ssize(x), 1}), weight, Tensor());
    return Mean(y);
  }
  Tensor weight;
};

struct Layer : Module {
  Layer(int64_t in, int64_t out) {
    RegisterParameter("weight", {out, in}, Init::Normal(1));
    RegisterParameter("bias", {out}, Init::Zeros());
  }
};

// Runs `body` on two ranks, each with an Accelerator. Expects that both end with the same error,
// and returns its message.
inline std::string Refusal(const std::function<void(Accelerator&, const Env&)>& body) {
  const auto results = RunRanks(2, [&](const Env& env) {
    Accelerator accelerator(Options(env));
    body(accelerator, env);
    return std::string();
  });
  EXPECT_EQ(results[0].said, results[1].said);
  EXPECT_EQ(results[0].exit_code, 3);
  return results[0].said;
}

// Returns options with a sharded update. With `share`, the ranks also share one copy of the
// parameters.
inline AcceleratorOptions Sharded(const Env& env, bool share = false) {
  AcceleratorOptions options = Options(env);
  options.shard_optimizer = true;
  options.share_parameters = share;
  return options;
}

// A model with a weight that is too large to travel with the records. Its gradient is the mean of
// the inputs.
struct Wide : Module {
  static constexpr int64_t kIn = 40000;
  explicit Wide(int64_t n = kIn) : weight(RegisterParameter("weight", {1, n}, Init::Ones())) {
    Initialize(3);
  }
  Tensor Loss(double input) const {
    return Mean(Linear(Tensor::Full(weight.shape(), input), weight, Tensor()));
  }
  Tensor weight;
};

}  // namespace lathe
