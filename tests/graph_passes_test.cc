// Training passes that know no batches, as CUDA graphs (optim/graphs/step_graphs.h).
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/module.h"
#include "lathe/optim/graphs/step_graphs.h"
#include "lathe/optim/optimizer.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// A model with one weight, whose loss is sum(weight * x).
struct Dot : Module {
  explicit Dot(int64_t n) {
    weight = RegisterParameter("weight", {n}, Init::Zeros());
    Initialize(1);
  }
  Tensor weight;
};

class GraphPassesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }

  // Trains with graphs. The weight's expected values are kept on the host.
  struct TrainingWithGraphs {
    explicit TrainingWithGraphs(int64_t n, std::shared_ptr<StepGraphs> shared = nullptr)
        : model(n), graphs(std::move(shared)), expected(static_cast<size_t>(n), 0) {
      if (graphs == nullptr) graphs = std::make_shared<StepGraphs>(CheckedDevice());
      model.To(CheckedDevice());
      optimizer = std::make_unique<SGD>(model.Parameters(), SGDOptions{.lr = 0.5});
    }

    // Makes a step with x = {value, value, ...} and returns what happened: e for eager, r for
    // recorded, p for repeated.
    char Step(float value, bool checked = true) {
      const std::vector<float> x(expected.size(), value);
      const std::vector<Parameter> parameters = model.Parameters();
      const auto pass_on = [&](const Tensor& on_device) {
        if (before_loss) before_loss();
        const Tensor loss = Sum(Mul(model.weight, on_device));
        Backward(loss);
        return loss;
      };
      const GraphStatistics before = graphs->statistics();
      const Tensor loss = graphs->Run(
          {.model = model,
           .parameters = parameters,
           .key = {7},
           .numbers_were_checked = checked,
           .numbers = [&] { return Tensor::FromVector(x); },
           .run =
               [&](const Tensor& numbers) {
                 Tensor there = Tensor::Unallocated({std::ssize(x)}, DType::kF32, numbers.device());
                 there.impl()->storage = numbers.impl()->storage;
                 return pass_on(there);
               },
           .run_eagerly = [&] { return pass_on(Tensor::FromVector(x).To(CheckedDevice())); },
           .describe = [] { return "a dot product"; }});
      const GraphStatistics after = graphs->statistics();
      float expected_loss = 0;
      for (const float w : expected) expected_loss += w * value;
      EXPECT_EQ(loss.Item(), expected_loss);
      optimizer->Step();
      optimizer->ZeroGrad();
      for (float& w : expected) w -= 0.5f * value;
      EXPECT_EQ(model.weight.ToVector<float>(), expected);
      return after.eager > before.eager ? 'e' : after.recorded > before.recorded ? 'r' : 'p';
    }

    Dot model;
    std::shared_ptr<StepGraphs> graphs;
    std::unique_ptr<SGD> optimizer;
    std::vector<float> expected;
    std::function<void()> before_loss;
  };
};

TEST_F(GraphPassesTest, RepeatWithNewNumbers) {
  TrainingWithGraphs line(4);
  EXPECT_EQ(line.Step(1), 'e');  // its gradients are fresh, unlike in other passes
  EXPECT_EQ(line.Step(2), 'e');
  EXPECT_EQ(line.Step(3), 'r');
  EXPECT_EQ(line.Step(-4), 'p');
  EXPECT_EQ(line.Step(5, /*checked=*/false), 'e');
  EXPECT_EQ(line.Step(6), 'p');
}

TEST_F(GraphPassesTest, OneModelsGraphIsNotAnothers) {
  TrainingWithGraphs line(4), other(5, line.graphs);
  for (int i = 0; i < 4; ++i) line.Step(1), other.Step(2);
  EXPECT_EQ(line.Step(3), 'p');
  EXPECT_EQ(other.Step(3), 'p');
}

TEST_F(GraphPassesTest, WhatReadsTheDeviceRunsEagerly) {
  TrainingWithGraphs line(4);
  line.before_loss = [&] { line.model.weight.ToVector<float>(); };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(line.Step(1), 'e');
  EXPECT_EQ(line.graphs->statistics().eager, 4);
}

TEST_F(GraphPassesTest, AFailedFirstPassLeavesNoTrace) {
  TrainingWithGraphs line(4);
  EXPECT_EQ(line.Step(1), 'e');
  line.before_loss = [] { throw InvalidArgument("[test] a bad number"); };
  EXPECT_THROW(line.Step(2), Error);
  line.before_loss = nullptr;
  EXPECT_EQ(line.Step(2), 'e');
  EXPECT_EQ(line.Step(2), 'r');
  line.before_loss = [] { throw InvalidArgument("[test] a bad number"); };
  EXPECT_THROW(line.Step(3, /*checked=*/false), Error);
  line.before_loss = nullptr;
  EXPECT_EQ(line.Step(3), 'p');
}

TEST_F(GraphPassesTest, NumbersOfAnotherSizeAreAnError) {
  TrainingWithGraphs line(4);
  line.Step(1);
  line.Step(1);
  const std::vector<Parameter> parameters = line.model.Parameters();
  EXPECT_THROW(line.graphs->Run({.model = line.model,
                                 .parameters = parameters,
                                 .key = {7},
                                 .numbers_were_checked = true,
                                 .numbers = [] { return Tensor::Zeros({3}); },
                                 .run = nullptr,
                                 .run_eagerly = nullptr,
                                 .describe = nullptr}),
               Error);
}

}  // namespace
}  // namespace lathe
