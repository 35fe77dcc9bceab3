// Values of a sharded update that come from other machines during the next forward pass.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

// Four layers, in buckets of their own.
struct Deep : Module {
  Deep() {
    for (int i = 0; i < 4; ++i)
      weights.push_back(RegisterParameter("weight" + std::to_string(i), {60, 60}, Init::Normal(1)));
    Initialize(5);
  }
  Tensor Loss(float input) const {
    Tensor x = Tensor::Full({2, 60}, input);
    for (const Tensor& weight : weights) x = Tanh(Linear(x, weight, Tensor()));
    return Mean(x);
  }
  std::vector<Tensor> weights;
};

AcceleratorOptions OnMachines(const Env& env, const std::vector<int>& machines, bool overlap) {
  AcceleratorOptions options = Sharded(PlacedOn(env, machines));
  options.reducer = {.first_bucket_bytes = 4000, .bucket_bytes = 16000, .overlap = overlap};
  return options;
}

// Returns a digest of the weights after some steps.
std::string Train(const Env& env, const std::vector<int>& machines, bool overlap) {
  Accelerator accelerator(OnMachines(env, machines, overlap));
  Deep model;
  AdamW optimizer(model.Parameters(), {.lr = 0.1});
  accelerator.Prepare(model, optimizer);
  for (int step = 0; step < 5; ++step) {
    accelerator.Backward(model.Loss(0.1f * static_cast<float>(env.rank + step)));
    accelerator.ClipGradNorm(optimizer, 1);
    optimizer.Step();
    optimizer.ZeroGrad();
    if (step == 3) {
      EXPECT_EQ(accelerator.Reduce(Tensor::Full({1}, 1)).Item(), env.world_size);
    }
  }
  std::string bytes;
  for (const Tensor& weight : model.weights)
    bytes.append(static_cast<const char*>(weight.raw_data()), static_cast<size_t>(weight.bytes()));
  EXPECT_FALSE(optimizer.step_is_half_done());
  return std::to_string(HashName(bytes));
}

TEST(LateValues, AreTheSame) {
  for (const std::vector<int>& machines :
       {std::vector<int>{1, 1}, {1, 1, 1}, {2, 1}, {2, 2}, {3, 1}}) {
    const int n = std::accumulate(machines.begin(), machines.end(), 0);
    std::vector<std::string> weights;
    for (const bool overlap : {false, true}) {
      const auto results =
          RunRanks(n, [&](const Env& env) { return Train(env, machines, overlap); });
      for (const RankResult& result : results) {
        EXPECT_EQ(result.exit_code, 0) << result.said;
        weights.push_back(result.said);
      }
    }
    for (const std::string& each : weights) EXPECT_EQ(each, weights[0]) << machines.size();
  }
}

// A rank goes on after its own update, while another one has not made its update yet.
TEST(LateValues, AStepDoesNotWaitForTheOthers) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(OnMachines(env, {1, 1}, /*overlap=*/true));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    accelerator.Backward(model.Loss(env.rank));
    if (env.rank == 1) accelerator.group().AwaitMessage("rank 0 has stepped", 0);
    optimizer.Step();
    if (env.rank == 0) {
      EXPECT_TRUE(optimizer.step_is_half_done());
      accelerator.group().PostMessage("rank 0 has stepped", "");
    }
    const std::vector<float> weight = model.weight.ToVector<float>();
    for (const float value : weight) EXPECT_EQ(value, weight[0]);
    EXPECT_NE(weight[0], 1);
    EXPECT_FALSE(optimizer.step_is_half_done());
    return std::string();
  });
  ExpectAllWell(results);
}

TEST(LateValues, OfALostRankEndTheWaitForThem) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(OnMachines(env, {1, 1}, /*overlap=*/true));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    accelerator.Backward(model.Loss(1));
    if (env.rank == 1) raise(SIGKILL);
    optimizer.Step();
    std::string said = "nobody noticed";
    for (int i = 0; i < 2; ++i) {
      try {
        model.Loss(1);
      } catch (const Error& e) {
        said = e.message();
      }
    }
    EXPECT_TRUE(optimizer.step_is_half_done());
    EXPECT_TRUE(optimizer.lacks_values_of_others());
    optimizer.arena().values().impl()->storage->Unshare();
    model.Loss(1);  // of what is there
    EXPECT_TRUE(optimizer.step_is_half_done());
    return said;
  });
  EXPECT_EQ(results[0].said, "[all_gather] rank 0 can't go on: rank 1 has ended while training");
}

}  // namespace
}  // namespace lathe
