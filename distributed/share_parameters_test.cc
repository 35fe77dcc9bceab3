// Tests of AcceleratorOptions::share_parameters beside those in tests/data_parallel_test.cc, which
// compare trainings, and shard_optimizer_test.cc, whose loops also run with it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/cast.h"
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
    EXPECT_FALSE(storage.is_writable_by_others());
    accelerator.Backward(model.Loss(1));
    EXPECT_TRUE(storage.is_writable_by_others());
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
    EXPECT_EQ(storage.is_writable_by_others(), env.rank != 1);
    EXPECT_EQ(weight[17], env.rank == 1 ? 42 : 43);
    return std::string();
  }));
}

// No rank steps early: a rank that is late still has the values from before its step.
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

// The optimizer of a frozen model has nothing to do.
TEST(ShareParameters, AFrozenModel) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide frozen, model;
    SGD first(frozen.Parameters(), {.lr = 1}), second(model.Parameters(), {.lr = 1});
    accelerator.Prepare(frozen, model, first, second);
    frozen.weight.SetRequiresGrad(false);
    accelerator.Backward(Add(frozen.Loss(1), model.Loss(1)));
    EXPECT_FALSE(frozen.weight.impl()->storage->is_writable_by_others());
    EXPECT_TRUE(model.weight.impl()->storage->is_writable_by_others());
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

// A rank is stopped before its update, is missed, and updates its stripes when it goes on. A rank
// that has its own copy by then keeps its values.
TEST(ShareParameters, WhoIsMissedAndGoesOnDoesNoHarm) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Sharded(env, /*share=*/true);
    options.timeout = std::chrono::milliseconds(1500);
    Accelerator accelerator(options);
    Wide model;
    SGD optimizer(model.Parameters(), {.lr = 1});
    accelerator.Prepare(model, optimizer);
    const pid_t other = std::stoi(accelerator.GatherObject(std::to_string(getpid()))[1]);
    accelerator.Backward(model.Loss(1));
    if (env.rank == 1) raise(SIGSTOP);
    try {
      optimizer.Step();
    } catch (const Error& e) {
      if (env.rank == 1) throw;
      EXPECT_TRUE(optimizer.step_is_half_done());
      const auto weights = model.weight.values<float>();
      const auto of_value = [&](float value) { return std::ranges::count(weights, value); };
      EXPECT_EQ(of_value(1), Wide::kIn);
      Storage& storage = *model.weight.impl()->storage;
      storage.Unshare();
      kill(other, SIGCONT);
      usleep(500'000);
      EXPECT_EQ(of_value(1), Wide::kIn);
      return e.message();
    }
    return std::string("it has stepped");
  });
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_TRUE(results[0].said.ends_with("rank 1 does not answer while training"))
      << results[0].said;
  EXPECT_EQ(results[1].exit_code, 3) << results[1].said;
}

// Trains and looks at the bfloat16 copies of the parameters, on one of three ranks.
void UpdateCopies(const Env& env, bool adamw) {
  Accelerator accelerator(Sharded(env, /*share=*/true));
  Wide model;
  std::unique_ptr<Optimizer> optimizer;
  if (adamw) {
    optimizer = std::make_unique<AdamW>(model.Parameters(), AdamWOptions{.lr = 0.1});
  } else {
    optimizer = std::make_unique<SGD>(model.Parameters(), SGDOptions{.lr = 0.1});
  }
  accelerator.Prepare(model, *optimizer);
  const TensorImpl& weight = *model.weight.impl();
  const auto is_current = [&] { return weight.low_precision_version == weight.storage->version(); };
  const auto expect_copy = [&](float value) {
    const auto copy = LowPrecisionCopy(model.weight, DType::kBF16).values<BFloat16>();
    const auto is_value = [&](BFloat16 x) { return static_cast<float>(x) == value; };
    EXPECT_EQ(std::ranges::count_if(copy, is_value), Wide::kIn) << value;
  };
  const auto step = [&] {
    accelerator.Backward(model.Loss(1));
    optimizer->Step();
    optimizer->ZeroGrad();
    return static_cast<float>(BFloat16(model.weight.data<float>()[Wide::kIn / 2]));
  };
  if (env.rank == 0) LowPrecisionCopy(model.weight, DType::kBF16);  // as a forward pass does
  for (int i = 0; i < 3; ++i) {
    const float expected = step();
    EXPECT_TRUE(weight.low_precision->storage->is_writable_by_others());
    EXPECT_EQ(is_current(), adamw);
    accelerator.WaitForEveryone();
    if (env.rank != 1 || adamw) expect_copy(expected);
  }
  // Rank 2 writes to the parameters, and the other ranks bump their version.
  accelerator.WaitForEveryone();
  if (env.rank == 2) model.weight.Fill(4);
  if (env.rank != 2) weight.storage->BumpVersion();
  accelerator.WaitForEveryone();
  EXPECT_FALSE(is_current());
  if (env.rank == 0) expect_copy(4);
  const float expected = step();
  EXPECT_LT(expected, 4);
  if (adamw) {
    EXPECT_EQ(is_current(), env.rank == 0);
  }
  accelerator.WaitForEveryone();
  if (env.rank == 0) expect_copy(expected);
  accelerator.WaitForEveryone();
  expect_copy(expected);
  // A rank that no longer trusts the others makes its own copy.
  accelerator.WaitForEveryone();
  if (env.rank == 1) {
    model.weight.impl()->storage->Unshare();
    model.weight.Fill(7);
    expect_copy(7);
    EXPECT_FALSE(weight.low_precision->storage->is_writable_by_others());
  }
  accelerator.WaitForEveryone();
  if (env.rank != 1) expect_copy(expected);
}

// Each rank writes its stripes of the bfloat16 copies for products, whichever rank makes the
// copies.
TEST(ShareParameters, CopiesForProducts) {
  for (const bool adamw : {true, false}) {
    ExpectAllWell(RunRanks(3, [adamw](const Env& env) {
      UpdateCopies(env, adamw);
      return std::string();
    }));
  }
}

// Returns a field of /proc/self/smaps_rollup in MiB, such as "Pss_Anon" or "Pss_Shmem".
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

// The parameters take 96 MiB. So do the gradients, which come with the first pass and which the
// other rank reads.
TEST(ShareParameters, AreHeldOnce) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Sharded(env, /*share=*/true));
    Wide model(24 << 20);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, optimizer);
    {
      NoGradGuard no_grad;
      model.Loss(1);  // its input takes as much; that memory is kept for the next time
    }
    const double before = Rollup("Pss_Anon");
    EXPECT_GT(before, 2 * 96);
    accelerator.Backward(model.Loss(1));
    EXPECT_NEAR(Rollup("Pss_Anon"), before - 96, 10);
    optimizer.Step();
    model.Loss(1);  // reads all parameters
    accelerator.WaitForEveryone();
    EXPECT_NEAR(Rollup("Pss_Shmem"), 48 + 96, 5);
    accelerator.WaitForEveryone();
    return std::string();
  }));
}

// Each rank's step would count, so the optimizer refuses.
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
                "of them would update all parameters");
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
