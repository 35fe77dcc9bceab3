// Tests the errors for processes that prepare different things, and for loaders side by side.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lathe/distributed/accelerator_testing.h"

namespace lathe {
namespace {

TEST(Preflight, OtherRates) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              Slope model;
              model.Initialize(1);
              SGD optimizer(model.Parameters(), {.lr = env.rank == 0 ? 0.5 : 0.25});
              accelerator.Prepare(model, optimizer);
            }),
            "[preflight] rank 1 has rate of group 0 0.25, now 0.25 but rank 0 has rate of group 0 "
            "0.5, now 0.5");
}

TEST(Preflight, OtherOptimizers) {
  const auto refusal = [](const std::function<void(SGDOptions&, AdamWOptions&)>& change,
                          bool adamw_in_rank_1 = false) {
    return Refusal([&](Accelerator& accelerator, const Env& env) {
      Slope model;
      model.Initialize(1);
      SGDOptions sgd = {.lr = 0.5};
      AdamWOptions adamw = {.lr = 0.5, .weight_decay = 0};
      if (env.rank == 1) change(sgd, adamw);
      std::unique_ptr<Optimizer> optimizer;
      if (env.rank == 1 && adamw_in_rank_1) {
        optimizer = std::make_unique<AdamW>(model.Parameters(), adamw);
      } else {
        optimizer = std::make_unique<SGD>(model.Parameters(), sgd);
      }
      accelerator.Prepare(model, *optimizer);
    });
  };
  EXPECT_EQ(refusal([](SGDOptions& sgd, AdamWOptions&) { sgd.weight_decay = 0.25; }),
            "[preflight] rank 1 has weight decay of group 0 0.25 but rank 0 has weight decay of "
            "group 0 0");
  EXPECT_EQ(refusal([](SGDOptions& sgd, AdamWOptions&) { sgd.momentum = 0.5; }),
            "[preflight] rank 1 has momentum 0.5 but rank 0 has momentum 0");
  EXPECT_EQ(refusal([](SGDOptions&, AdamWOptions&) {}, true),
            "[preflight] rank 1 has optimizer AdamW but rank 0 has optimizer SGD");
}

TEST(Preflight, OtherSchedules) {
  const auto refusal = [](const std::string& name, int64_t num_steps, int64_t patience) {
    return Refusal([&](Accelerator& accelerator, const Env& env) {
      Slope model;
      model.Initialize(1);
      SGD optimizer(model.Parameters(), {.lr = 0.5});
      const auto scheduler = GetScheduler(
          env.rank == 1 ? name : "constant", optimizer,
          {.num_training_steps = env.rank == 1 ? num_steps : 10, .patience = patience + env.rank});
      accelerator.Prepare(model, optimizer, *scheduler);
    });
  };
  EXPECT_EQ(refusal("linear", 10, 3),
            "[preflight] rank 1 has schedule's lr_scheduler_type linear but rank 0 has schedule's "
            "lr_scheduler_type constant");
  EXPECT_EQ(refusal("constant", 11, 3),
            "[preflight] rank 1 has schedule's num_training_steps 11 but rank 0 has schedule's "
            "num_training_steps 10");
  EXPECT_EQ(refusal("constant", 10, 3),
            "[preflight] rank 1 has schedule's patience 4 but rank 0 has schedule's patience 3");
}

TEST(Preflight, OtherLossScaling) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.grad_scaler.init_scale = env.rank == 0 ? 1024 : 2048;
    const Accelerator accelerator(options);
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said, "[preflight] rank 1 has init_scale 2048 but rank 0 has init_scale 1024");
  }
}

TEST(Preflight, OtherModel) {
  EXPECT_EQ(
      Refusal([](Accelerator& accelerator, const Env& env) {
        Layer layer(3, 2 + env.rank);
        layer.Initialize(1);
        accelerator.Prepare(layer);
      }),
      "[preflight] rank 1 has parameter weight [3, 3] but rank 0 has parameter weight [2, 3]");
}

TEST(Preflight, FrozenOnOneRank) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              Slope model;
              model.Initialize(1);
              Layer layer(3, 2);
              layer.Initialize(1);
              accelerator.Prepare(layer, model);
              layer.Parameters()[1].tensor.SetRequiresGrad(env.rank == 0);
              accelerator.Backward(model.Loss({0}));
            }),
            "[preflight] rank 1 has no parameter bias but rank 0 has parameter bias [2]");
}

TEST(Preflight, OtherData) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              DataLoader loader(Data(5 + env.rank), {.batch_size = 2});
              accelerator.Prepare(loader);
            }),
            "[preflight] rank 1 has dataset of size 6 but rank 0 has dataset of size 5");
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              DataLoader loader(Data(5), {.batch_size = 2, .even_tokens = env.rank == 0});
              accelerator.Prepare(loader);
            }),
            "[preflight] rank 1 has even_tokens 0 but rank 0 has even_tokens 1");
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              TokenizedDataset data = Data(5);
              if (env.rank == 1) data.input_ids[3] = 17;
              DataLoader loader(data, {.batch_size = 2});
              accelerator.Prepare(loader);
            }).substr(0, 43),
            "[preflight] rank 1 has digest of token ids ");
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              TokenizedDataset data = Data(5);
              if (env.rank == 1) data.token_type_ids[3] = 1;
              DataLoader loader(data, {.batch_size = 2});
              accelerator.Prepare(loader);
            }).substr(0, 48),
            "[preflight] rank 1 has digest of token type ids ");
}

TEST(Preflight, LongValuesAreShownWhereTheyDiffer) {
  // A character of three bytes must not be cut.
  const std::string begin(3000, 'a'), euros = "€€€€€€€€€€€€€€€€€€€€", end(500, 'z');
  const auto text = [&](const std::string& word) {
    return "words ..." + euros.substr(12) + word + std::string(200 - 48 - word.size(), 'z') + "...";
  };
  EXPECT_EQ(Refusal([&](Accelerator& accelerator, const Env& env) {
              const std::string word = env.rank == 0 ? "cat" : "dog";
              accelerator.CheckSame({{"words", begin + euros + word + end}});
            }),
            "[preflight] rank 1 has " + text("dog") + " but rank 0 has " + text("cat"));
  EXPECT_EQ(
      Refusal([&](Accelerator& accelerator, const Env& env) {
        accelerator.CheckSame({{"words", env.rank == 0 ? "none" : begin}});
      }),
      "[preflight] rank 1 has words " + begin.substr(0, 200) + "... but rank 0 has words none");
  EXPECT_EQ(Refusal([&](Accelerator& accelerator, const Env& env) {
              accelerator.CheckSame({{"words", env.rank == 0 ? begin : begin + "b"}});
            }),
            "[preflight] rank 1 has words ..." + begin.substr(0, 50) +
                "b but rank 0 has words ..." + begin.substr(0, 50));
}

TEST(Preflight, OtherOptions) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.mixed_precision = env.rank == 0 ? "no" : "bf16";
    Accelerator accelerator(options);
    return std::string();
  });
  for (const RankResult& result : results)
    EXPECT_EQ(result.said,
              "[preflight] rank 1 has mixed_precision bf16 but rank 0 has mixed_precision no");
}

// This test links neither CUDA nor NCCL.
TEST(Preflight, Devices) {
  const auto with_device = [](const std::string& of_rank_0, const std::string& of_rank_1) {
    const auto results = RunRanks(2, [&](const Env& env) {
      AcceleratorOptions options = Options(env);
      options.device = env.rank == 0 ? of_rank_0 : of_rank_1;
      const Accelerator accelerator(options);
      return "on " + ToString(accelerator.device()) + ", " + accelerator.distributed_type();
    });
    EXPECT_EQ(results[0].said, results[1].said);
    return results[0].said;
  };
  EXPECT_EQ(with_device("auto", "auto"), "on cpu, MULTI_CPU");
  EXPECT_EQ(with_device("cpu", "cpu"), "on cpu, MULTI_CPU");
  EXPECT_EQ(with_device("cuda", "cuda"), "[accelerator] this program was built without CUDA");
  EXPECT_EQ(with_device("cuda:1", "cuda:1"),
            "[accelerator] device cuda:1 is one GPU but there are 2 processes");
  EXPECT_EQ(with_device("gpu", "gpu"), "[device] unknown device \"gpu\"");
  EXPECT_EQ(with_device("auto", "cpu"),
            "[preflight] rank 1 has device cpu but rank 0 has device auto");
}

// Loaders side by side are an error if their shares differ, because nobody can tell to which batch
// a loss belongs. Nested loops are fine.
TEST(Accelerator, LoadersSideBySide) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    DataLoader one(Data(12), {.batch_size = 4}), other(Data(10), {.batch_size = 5});
    accelerator.Prepare(model, optimizer, one, other);
    std::string said;
    for (const Batch& batch : one) {
      for (const Batch& inner : other) {
        accelerator.Backward(model.Loss(inner.indices));
        accelerator.GatherForMetrics(inner.labels);
      }
      accelerator.Backward(model.Loss(batch.indices));
    }
    // Loaders side by side are fine if a process's shares are the same in both.
    DataLoader twin(one.dataset(), {.batch_size = 4});
    accelerator.Prepare(twin);
    auto second = twin.begin();
    for (const Batch& batch : one) {
      accelerator.Backward(model.Loss(batch.indices));
      accelerator.GatherForMetrics(batch.labels);
      ++second;
    }
    auto at = one.begin();
    auto beside = other.begin();
    ++at;
    const std::vector<int64_t> indices = at->indices;
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             [&] { accelerator.Backward(model.Loss(indices)); },
             [&] { accelerator.GatherForMetrics(beside->labels); }}) {
      try {
        call();
        said += "nothing; ";
      } catch (const Error& e) {
        said += std::string(e.message()) + "; ";
      }
    }
    accelerator.Backward(model.Loss(indices), static_cast<double>(indices.size()));
    // A nested loop works after the errors.
    for (const Batch& batch : twin) accelerator.GatherForMetrics(batch.labels);
    return said;
  });
  for (const RankResult& result : results) {
    const std::string wrong =
        "two prepared loaders are read side by side, and this process's shares of their batches "
        "differ; ";
    EXPECT_EQ(result.said, "[backward] " + wrong + "[gather_for_metrics] " + wrong);
  }
}

}  // namespace
}  // namespace lathe
