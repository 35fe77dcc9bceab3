// Tests how loops of an Accelerator end when another rank is lost.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

TEST(Accelerator, ARankThatLeavesTheLoopEarlyIsNamed) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    for (int step = 0; step < (env.rank == 1 ? 3 : 5); ++step) {
      accelerator.Backward(model.Loss({1}));
      optimizer.Step();
      optimizer.ZeroGrad();
    }
    return std::string();
  });
  EXPECT_EQ(results[1].exit_code, 0);
  EXPECT_EQ(results[0].said, "[all_reduce] rank 0 can't go on: rank 1 has ended while training");
  EXPECT_LT(results[0].seconds - results[1].seconds, 2);
}

// Trains and evaluates with prepared loaders. Rank 1 kills itself when it has come to the place
// `when`.
void LoopUntil(const std::string& when, const Env& env) {
  Accelerator accelerator(Options(env));
  Slope model;
  model.Initialize(1);
  SGD optimizer(model.Parameters(), {.lr = 0.1});
  DataLoader train(Data(8), {.batch_size = 2}), eval(Data(4), {.batch_size = 2});
  accelerator.Prepare(model, optimizer, train, eval);
  const auto at = [&](const std::string& place) {
    if (when == place && env.rank == 1) raise(SIGKILL);
    if (when == place) accelerator.WaitForEveryone();
  };
  const auto step = [&](const Batch& batch) {
    accelerator.Backward(model.Loss(batch.indices));
    optimizer.Step();
    optimizer.ZeroGrad();
  };
  const auto evaluate = [&](const std::string& place) {
    const NoGradGuard no_grad;
    for (const Batch& batch : eval) {
      accelerator.GatherForMetrics(batch.labels);
      at(place);
    }
  };
  at("before any loop");
  for (const Batch& batch : train) {
    at("before the first step");
    step(batch);
    at("after the first step");
  }
  at("between");
  evaluate("evaluation");
  for (const Batch& batch : train) {
    step(batch);
    evaluate("evaluation between steps");
    at("after an evaluation between steps");
  }
  for (const Batch& batch : train) {
    step(batch);
    break;
  }
  at("after a break");
  try {
    for (const Batch& batch : train) {
      step(batch);
      throw InvalidArgument("caught");
    }
  } catch (const Error&) {
  }
  evaluate("after an exception");
  accelerator.SetPhase("dreaming");
  evaluate("own words");
}

// The error about a killed rank says what that rank's loops over prepared loaders were doing.
TEST(Accelerator, WhatALostRankWasDoing) {
  const auto said_when = [](const std::string& when) {
    const auto results = RunRanks(2, [&](const Env& env) {
      LoopUntil(when, env);
      return std::string();
    });
    EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
    constexpr std::string_view kStart = "[barrier] rank 0 can't go on: rank 1 has ended";
    EXPECT_TRUE(results[0].said.starts_with(kStart)) << results[0].said;
    return results[0].said.substr(std::min(kStart.size(), results[0].said.size()));
  };
  EXPECT_EQ(said_when("before any loop"), "");
  EXPECT_EQ(said_when("before the first step"), " while in a loop over a prepared loader");
  EXPECT_EQ(said_when("after the first step"), " while training");
  EXPECT_EQ(said_when("between"), " while between loops over prepared loaders");
  EXPECT_EQ(said_when("evaluation"), " while evaluating");
  EXPECT_EQ(said_when("evaluation between steps"), " while evaluating");
  EXPECT_EQ(said_when("after an evaluation between steps"), " while training");
  EXPECT_EQ(said_when("after a break"), " while between loops over prepared loaders");
  EXPECT_EQ(said_when("after an exception"), " while evaluating");
  EXPECT_EQ(said_when("own words"), " while dreaming");
}

// A loop without collectives learns of a lost rank with its next batch.
TEST(Accelerator, ALoopWithoutCollectivesEndsWithARankThatIsLost) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    DataLoader loader(Data(4000), {.batch_size = 2});
    accelerator.Prepare(loader);
    const NoGradGuard no_grad;
    for (const Batch& batch : loader) {
      if (env.rank == 1 && batch.step == 20) raise(SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return std::string("has seen all");
  });
  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
  EXPECT_EQ(results[0].said, "[check_peers] rank 0 can't go on: rank 1 has ended while evaluating");
  EXPECT_LT(results[0].seconds - results[1].seconds, 2);
}

// A long backward pass learns of a lost rank while it runs.
TEST(Accelerator, ALongBackwardPassEndsWithARankThatIsLost) {
  static std::chrono::milliseconds pause;
  pause = {};
  struct Slow : Function {
    Tensor Forward(const std::vector<Tensor>& x) override { return Add(x[0], x[1]); }
    std::vector<Tensor> Backward(const Tensor& grad) override {
      std::this_thread::sleep_for(pause);
      return {grad, Sum(grad)};
    }
  };
  struct Chain : Module {
    Chain() {
      for (int i = 0; i < 40; ++i)
        weights.push_back(RegisterParameter("weight" + std::to_string(i), {}, Init::Ones()));
    }
    std::vector<Tensor> weights;
  };
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Chain model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    for (int step = 0; step < 2; ++step) {
      if (step == 1 && env.rank == 1) raise(SIGKILL);
      Tensor loss = model.weights[0];
      for (size_t i = 1; i < model.weights.size(); ++i)
        loss = Apply<Slow>({loss, model.weights[i]});
      accelerator.Backward(loss);
      optimizer.Step();
      optimizer.ZeroGrad();
      pause = std::chrono::milliseconds(300);
    }
    return std::string();
  });
  EXPECT_EQ(results[0].said, "[check_peers] rank 0 can't go on: rank 1 has ended while training");
  EXPECT_LT(results[0].seconds - results[1].seconds, 2);
}

// A long forward pass learns of a lost rank while it runs.
TEST(Accelerator, ALongForwardPassEndsWithARankThatIsLost) {
  struct Slow : Function {
    Tensor Forward(const std::vector<Tensor>& x) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return x[0];
    }
    std::vector<Tensor> Backward(const Tensor& grad) override { return {grad}; }
  };
  for (const bool trains : {true, false}) {
    const auto results = RunRanks(2, [trains](const Env& env) {
      Accelerator accelerator(Options(env));
      Slope model;
      model.Initialize(1);
      SGD optimizer(model.Parameters(), {.lr = 0.1});
      DataLoader loader(Data(8), {.batch_size = 2});
      accelerator.Prepare(model, optimizer, loader);
      std::optional<NoGradGuard> no_grad;
      if (!trains) no_grad.emplace();
      for (const Batch& batch : loader) {
        Tensor loss = model.Loss(batch.indices);
        if (trains) accelerator.Backward(loss);
        if (env.rank == 1) raise(SIGKILL);
        for (int i = 0; i < 40; ++i) loss = Apply<Slow>({loss});
      }
      return std::string();
    });
    EXPECT_EQ(results[0].said,
              std::string("[check_peers] rank 0 can't go on: rank 1 has ended while ") +
                  (trains ? "training" : "evaluating"));
    EXPECT_LT(results[0].seconds - results[1].seconds, 2);
  }
}

// Ops after the loop, or after the error has ended it, don't throw because of lost ranks.
TEST(Accelerator, OpsOutsideOfLoopsGoOnWithoutLostRanks) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    DataLoader loader(Data(400), {.batch_size = 2});
    accelerator.Prepare(model, loader);
    try {
      for (const Batch& batch : loader) {
        model.Loss(batch.indices);
        if (env.rank == 1) raise(SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    } catch (const Error& e) {
      return std::to_string(model.Loss({2}).Item());
    }
    return std::string("no error");
  });
  EXPECT_EQ(results[0].said, std::to_string(3.0f));
}

}  // namespace
}  // namespace lathe
