// A loop over a loader of any data set, for tests of one rank and of several.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/losses.h"
#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/tensor_dataset.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/nn/layers.h"

namespace lathe {

constexpr int64_t kFeatures = 4, kHidden = 6, kClasses = 3;

struct Mlp : Module {
  Mlp()
      : first(Register<nn::Linear>("first", kFeatures, kHidden, Init::Normal(1))),
        second(Register<nn::Linear>("second", kHidden, kClasses, Init::Normal(1))) {
    Initialize(7);
  }
  Tensor operator()(const Tensor& x) const { return second->Forward(Tanh(first->Forward(x))); }
  std::shared_ptr<nn::Linear> first, second;
};

// Rows of random-looking numbers.
inline TensorDataset<2> Rows(int64_t n) {
  std::vector<float> inputs;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < kFeatures; ++k)
      inputs.push_back(std::sin(static_cast<float>(7 * i + 3 * k)));
    targets.push_back(i * i % kClasses);
  }
  return TensorDataset(Tensor::FromVector(inputs, {n, kFeatures}), Tensor::FromVector(targets));
}

// A stream of the same rows.
struct RowStream : IterableDataset<std::array<Tensor, 2>> {
  explicit RowStream(TensorDataset<2> all) : rows(std::move(all)) {}
  std::function<std::optional<std::array<Tensor, 2>>()> Start(int64_t) const override {
    return [all = rows, i = int64_t{0}]() mutable -> std::optional<std::array<Tensor, 2>> {
      if (i == all.Size()) return std::nullopt;
      return all.Get(i++);
    };
  }
  TensorDataset<2> rows;
};

// Trains the loop of the general kind. Returns the losses of the steps.
template <typename L>
std::string Train(Accelerator& accelerator, Mlp& model, L& train, int epochs = 3) {
  SGD optimizer(model.Parameters(), {.lr = 0.3});
  accelerator.Prepare(model, optimizer, train);
  std::ostringstream losses;
  losses.precision(12);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (auto& [inputs, targets] : train) {
      const auto accumulation = accelerator.Accumulate();
      const Tensor outputs = model(inputs);
      const Tensor loss = CrossEntropy(outputs, targets);
      accelerator.Backward(loss);
      optimizer.Step();
      optimizer.ZeroGrad();
      if (accelerator.sync_gradients()) losses << accelerator.last_loss() << ' ';
    }
  }
  return losses.str();
}

inline std::vector<double> Numbers(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<double>(in), {}};
}

// Returns the losses that all ranks say.
inline std::vector<double> LossesOf(int n, const std::function<std::string(const Env&)>& body) {
  const auto results = RunRanks(n, body);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.said;
    EXPECT_EQ(result.said, results[0].said);
  }
  return Numbers(results[0].said);
}

inline void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double limit) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], limit * std::fabs(b[i])) << "step " << i;
}

// Compares the losses of 2, 3 and 4 ranks with those of one, which it returns.
inline std::vector<double> ExpectSameForAll(const std::function<std::string(const Env&)>& body) {
  const std::vector<double> alone = LossesOf(1, body);
  EXPECT_FALSE(alone.empty());
  for (const int n : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(n) + " ranks");
    ExpectNear(LossesOf(n, body), alone, 1e-6);
  }
  return alone;
}

}  // namespace lathe
