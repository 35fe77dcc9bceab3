// AcceleratorOptions::share_parameters, where tests/data_parallel_test.cc, which compares
// trainings, and shard_optimizer_test.cc, whose loops are the same with it, don't look.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

TEST(ShareParameters, OneCopyUntilSomebodyHasItsOwn) {
  ExpectAllWell(RunRanks(3, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide model;
    AdamW optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    const float* const weight = model.weight.data<float>();
    Storage& storage = *model.weight.impl()->storage;
    EXPECT_FALSE(storage.is_shared());
    accelerator.Backward(model.Loss(1));
    EXPECT_TRUE(storage.is_shared());
    EXPECT_EQ(model.weight.data<float>(), weight);
    EXPECT_EQ(weight[17], 1);
    const auto write = [&](float value) {
      accelerator.WaitForEveryone();
      if (env.rank == 2) model.weight.data<float>()[17] = value;
      accelerator.WaitForEveryone();
    };
    write(42);
    EXPECT_EQ(weight[17], 42);
    accelerator.WaitForEveryone();
    if (env.rank == 1) storage.Unshare();
    write(43);
    EXPECT_EQ(storage.is_shared(), env.rank != 1);
    EXPECT_EQ(weight[17], env.rank == 1 ? 42 : 43);
    return std::string();
  }));
}

// Who is late still has the values of before its step.
TEST(ShareParameters, NobodyBeginsBeforeTheOthers) {
  ExpectAllWell(RunRanks(3, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    for (int step = 0; step < 3; ++step) {
      accelerator.Backward(model.Loss(1));
      if (env.rank == step) {
        usleep(50'000);
        const auto weights = model.weight.values<float>();
        EXPECT_TRUE(std::all_of(weights.begin(), weights.end(),
                                [&](float w) { return w == static_cast<float>(1 - step); }));
      }
      optimizer.Step();
      optimizer.ZeroGrad();
    }
    return std::string();
  }));
}

// Its optimizer has nothing to do.
TEST(ShareParameters, AFrozenModel) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide frozen, model;
    SGD first(frozen.Parameters(), {.lr = 1}), second(model.Parameters(), {.lr = 1});
    accelerator.Prepare(frozen, model, first, second);
    frozen.weight.SetRequiresGrad(false);
    accelerator.Backward(Add(frozen.Loss(1), model.Loss(1)));
    EXPECT_FALSE(frozen.weight.impl()->storage->is_shared());
    EXPECT_TRUE(model.weight.impl()->storage->is_shared());
    first.Step();
    second.Step();
    EXPECT_EQ(frozen.weight.data<float>()[1], 1);
    EXPECT_EQ(model.weight.data<float>()[1], 0);
    return std::string();
  }));
}

TEST(ShareParameters, AParameterThatIsThawedTooLate) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide frozen, model;
    std::vector<Parameter> parameters = model.Parameters();
    for (const Parameter& p : frozen.Parameters()) parameters.push_back({"frozen", p.tensor});
    SGD optimizer(parameters, {.lr = 1});
    accelerator.Prepare(frozen, model, optimizer);
    frozen.weight.SetRequiresGrad(false);
    accelerator.Backward(model.Loss(1));
    frozen.weight.SetRequiresGrad(true);
    try {
      optimizer.Step();
      ADD_FAILURE() << "it has stepped";
    } catch (const Error& e) {
      EXPECT_EQ(e.message(),
                "[optimizer] parameter frozen was frozen in the last Backward, and several "
                "processes would update it");
    }
    accelerator.Backward(Add(frozen.Loss(1), model.Loss(1)));
    optimizer.Step();
    EXPECT_EQ(frozen.weight.data<float>()[1], 0);
    return std::string();
  }));
}

// In MiB, from /proc/self/smaps_rollup, such as "Pss_Anon", "Pss_Shmem".
double Rollup(const std::string& field) {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    if (word != field + ":") continue;
    double kibibytes = 0;
    rollup >> kibibytes;
    return kibibytes / 1024;
  }
  return -1;
}

// 96 MiB of parameters, and as much for gradients, which come with the first pass and which the
// others read.
TEST(ShareParameters, AreHeldOnce) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide model(24 << 20);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    const double before = Rollup("Pss_Anon");
    EXPECT_GT(before, 96);
    accelerator.Backward(model.Loss(1));
    EXPECT_NEAR(Rollup("Pss_Anon"), before - 96, 10);
    optimizer.Step();
    model.Loss(1);  // reads all of them
    accelerator.WaitForEveryone();
    EXPECT_NEAR(Rollup("Pss_Shmem"), 48 + 96, 5);
    accelerator.WaitForEveryone();
    return std::string();
  }));
}

// Each process's step would count.
TEST(ShareParameters, AnOptimizerThatIsNotPrepared) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1}), other(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    accelerator.Backward(model.Loss(1));
    optimizer.Step();
    optimizer.ZeroGrad();
    try {
      other.Step();
      ADD_FAILURE() << "it has stepped";
    } catch (const Error& e) {
      EXPECT_EQ(e.message(),
                "[optimizer] the parameters lie in memory that several processes share, and each "
                "would update them");
      EXPECT_NE(e.hint().find("AcceleratorOptions::share_parameters"), std::string::npos);
    }
    EXPECT_EQ(model.weight.data<float>()[0], 0);
    return std::string();
  }));
}

TEST(ShareParameters, OnOneRankOnly) {
  const auto results = RunRanks(
      2, [](const Env& env) { return Accelerator(Sharded(env, env.rank == 0)), std::string(); });
  for (const RankResult& result : results)
    EXPECT_EQ(result.said,
              "[preflight] rank 1 has share_parameters false but rank 0 has share_parameters true");
}

}  // namespace
}  // namespace lathe
