// What the Accelerator refuses, and how it ends, with several processes.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string_view>
#include <thread>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/distributed/launch.h"
#include "lathe/distributed/rank_end.h"
#include "lathe/distributed/shared_error.h"
#include "lathe/models/bert.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

std::string Refusal(const std::function<void(Accelerator&, const Env&)>& body) {
  const auto results = RunRanks(2, [&](const Env& env) {
    Accelerator accelerator(Options(env));
    body(accelerator, env);
    return std::string();
  });
  EXPECT_EQ(results[0].said, results[1].said);
  EXPECT_EQ(results[0].exit_code, 3);
  return results[0].said;
}

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

TEST(Preflight, OtherConfigurationOrSeed) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              accelerator.Prepare(*TinyBert({{"hidden_dropout_prob", env.rank == 0 ? 0.5 : 0.25}}));
            }),
            "[preflight] rank 1 has config hidden_dropout_prob 0.25 but rank 0 has config "
            "hidden_dropout_prob 0.5");
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              accelerator.Prepare(*AutoModelForSequenceClassification::FromConfig(
                  TinyBert()->config(), {.seed = env.rank == 0 ? 5u : 7u}));
            }),
            "[preflight] rank 1 has seed 7 but rank 0 has seed 5");
  // A model within another module.
  struct Outer : Module {
    explicit Outer(double dropout) {
      RegisterModule("encoder", TinyBert({{"hidden_dropout_prob", dropout}}));
    }
  };
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              Outer outer(env.rank == 0 ? 0.5 : 0.25);
              accelerator.Prepare(outer);
            }),
            "[preflight] rank 1 has encoder.config hidden_dropout_prob 0.25 but rank 0 has "
            "encoder.config hidden_dropout_prob 0.5");
  // A model of one's own around an encoder.
  struct Own : Module {
    explicit Own(double dropout) {
      PretrainedConfig config = TinyBert()->config();
      config.json()["hidden_dropout_prob"] = dropout;
      Register<BertModel>("bert", config);
      Initialize(1);
    }
  };
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              Own own(env.rank == 0 ? 0.5 : 0.25);
              accelerator.Prepare(own);
            }),
            "[preflight] rank 1 has bert.config hidden_dropout_prob 0.25 but rank 0 has "
            "bert.config hidden_dropout_prob 0.5");
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
  // A character of three bytes may not be cut.
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
            "[accelerator] device cuda:1 is one GPU, and there are 2 processes");
  EXPECT_EQ(with_device("gpu", "gpu"), "[device] unknown device \"gpu\"");
  EXPECT_EQ(with_device("auto", "cpu"),
            "[preflight] rank 1 has device cpu but rank 0 has device auto");
}

TEST(Accelerator, FindsParametersThatDrift) {
  const auto results = RunRanks(2, [](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.check_parameters_every = 5;
    Accelerator accelerator(options);
    Slope model;
    Layer layer(3, 2);
    model.Initialize(1);
    layer.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    SGD other(layer.Parameters(), {.lr = 0.1});
    accelerator.Prepare(model, layer, optimizer, other);
    for (int step = 1; step <= 12; ++step) {
      accelerator.Backward(model.Loss({1}));
      optimizer.Step();
      optimizer.ZeroGrad();
      uint32_t* bits = static_cast<uint32_t*>(layer.Parameters()[0].tensor.raw_data());
      if (step == 7 && env.rank == 1) bits[4] ^= 1;
    }
    return std::string("nobody noticed");
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(
        result.said.starts_with("[step 10: processes have drifted apart] rank 1 has "
                                "parameter weight with checksum "))
        << result.said;
  }
}

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

// A killed rank is told with what its loops over prepared loaders were for.
TEST(Accelerator, WhatALostRankWasDoing) {
  const auto said_when = [](const std::string& when) {
    const auto results = RunRanks(2, [&](const Env& env) {
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

// A loop that computes by itself hears of it with the next batch.
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

// One that has done its part is not missed by those that compute on.
TEST(Accelerator, AFunctionMayEndEarlierInSomeRanks) {
  const auto results = RunRanks(1, [](const Env&) {
    const int code = Launch(
        [] {
          Accelerator accelerator;
          DataLoader loader(Data(40), {.batch_size = 2});
          accelerator.Prepare(loader);
          const auto turn = accelerator.MainProcessFirst();
          if (!accelerator.is_main_process()) return;
          const NoGradGuard no_grad;
          for ([[maybe_unused]] const Batch& batch : loader)
            std::this_thread::sleep_for(std::chrono::milliseconds(80));
        },
        2, {.num_gpus = 0});
    const int other = Launch(
        [] {
          Accelerator accelerator;
          DataLoader loader(Data(40), {.batch_size = 2});
          accelerator.Prepare(loader);
          if (accelerator.is_main_process()) return;
          const NoGradGuard no_grad;
          for ([[maybe_unused]] const Batch& batch : loader)
            std::this_thread::sleep_for(std::chrono::milliseconds(80));
        },
        2, {.num_gpus = 0});
    return std::to_string(code) + " " + std::to_string(other);
  });
  EXPECT_EQ(results[0].said, "0 0");
}

// Each waits for its own machine's main process, however early another one ends.
TEST(Accelerator, AMachinesTurnIsNotAnothers) {
  const auto results = RunProcesses(
      [] {
        std::vector<Env> all = Environments(3, FreePort());
        all[2].local_rank = 0;  // a second machine of one process
        return all;
      }(),
      [](const Env& env) {
        {
          Accelerator accelerator(Options(env));
          const auto turn = accelerator.LocalMainProcessFirst();
          if (env.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
        }
        EndRank();
        return std::string();
      });
  ExpectAllWell(results);
}

// Which of the ranks that end with the same error tells of it.
TEST(SharedError, TheFirstTells) {
  const auto told = [](int n, const std::function<std::string(int rank)>& error) {
    std::vector<std::string> all;
    for (const RankResult& result : RunRanks(n, [&](const Env& env) {
           Accelerator accelerator(Options(env));
           const std::string mine = error(env.rank);
           if (mine.empty()) std::this_thread::sleep_for(std::chrono::seconds(2));
           if (mine.empty()) return mine;
           return LowerRankTells(InvalidArgument(mine)) ? std::string("silent") : mine;
         })) {
      all.push_back(result.said);
    }
    return all;
  };
  using Said = std::vector<std::string>;
  for (int round = 0; round < 20; ++round)
    EXPECT_EQ(told(3, [](int) { return "wrong"; }), (Said{"wrong", "silent", "silent"}));
  EXPECT_EQ(told(3, [](int rank) { return rank == 0 ? "" : "wrong"; }),
            (Said{"", "wrong", "silent"}));
  EXPECT_EQ(told(3, [](int rank) { return rank == 1 ? "other" : "wrong"; }),
            (Said{"wrong", "other", "silent"}));
  EXPECT_EQ(told(2, [](int rank) { return rank == 1 ? "wrong" : ""; }), (Said{"", "wrong"}));
  EXPECT_EQ(told(1, [](int) { return "wrong"; }), (Said{"wrong"}));
}

TEST(Accelerator, AnExceptionInABackwardPassEndsTheJob) {
  struct Bad : Function {
    Tensor Forward(const std::vector<Tensor>& x) override { return x[0].Clone(); }
    std::vector<Tensor> Backward(const Tensor&) override { throw InvalidArgument("no gradient"); }
  };
  const char* rounds = std::getenv("LATHE_FAULT_ROUNDS");  // for each victim; 1
  for (int round = 0; round < (rounds == nullptr ? 2 : 2 * std::atoi(rounds)); ++round) {
    const int victim = round % 2;
    const auto results = RunRanks(2, [victim](const Env& env) {
      Accelerator accelerator(Options(env));
      Slope model;
      model.Initialize(1);
      SGD optimizer(model.Parameters(), {.lr = 0.1});
      accelerator.Prepare(model, optimizer);
      for (int step = 0; step < 4; ++step) {
        Tensor loss = model.Loss({1});
        if (step == 2 && env.rank == victim) loss = Apply<Bad>({loss});
        accelerator.Backward(loss);
        optimizer.ZeroGrad();
      }
      return std::string();
    });
    EXPECT_EQ(results[victim].said, "no gradient");
    const std::string other = std::to_string(1 - victim);
    EXPECT_EQ(results[1 - victim].said,
              "[all_reduce] rank " + other + " can't go on: rank " + std::to_string(victim) +
                  " has ended" + (victim == 0 ? "; this rank was training" : " while training"));
    const double seconds = std::abs(results[0].seconds - results[1].seconds);
    std::cout << "rank " << victim << " threw: " << seconds << " s\n";
    EXPECT_LT(seconds, 2);
    EXPECT_LT(std::max(results[0].seconds, results[1].seconds), 10);
  }
}

TEST(Accelerator, AMainProcessThatFailsInItsTurnLetsNobodyWait) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    const auto turn = accelerator.MainProcessFirst();
    if (env.rank == 0) throw InvalidArgument("train.csv:7: ragged");
    return std::string();
  });
  EXPECT_EQ(results[0].said, "train.csv:7: ragged");
  EXPECT_EQ(results[1].said, "[await] rank 1 can't go on: rank 0 has ended");
  EXPECT_LT(results[1].seconds - results[0].seconds, 2);
}

TEST(Accelerator, CallsThatDoNotMatchAreNamed) {
  const auto results = RunRanks(2, [](const Env& env) {
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(1)});
    std::vector<float> data(3);
    env.rank == 0 ? group->Barrier() : group->AllReduce(data);
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_NE(result.said.find("the ranks' calls don't match: rank 0 is in barrier, rank 1 is in "
                               "all_reduce"),
              std::string::npos)
        << result.said;
  }
}

TEST(Accelerator, CollectivesRefuseWhatDoesNotFit) {
  const auto results = RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    accelerator.Reduce(Tensor::Zeros({2, 1 + env.rank}));
    return std::string();
  });
  for (const RankResult& result : results)
    EXPECT_EQ(result.said, "[reduce] rank 1 has float32 [2, 2] but rank 0 has float32 [2, 1]");
}

TEST(Accelerator, TheMainProcessStaysUntilAllAreDone) {
  ExpectAllWell(RunRanks(3, [](const Env& env) {
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(20)});
    if (env.rank == 0) {
      EXPECT_EQ(group->Find("key", std::chrono::milliseconds(1)), std::nullopt);
      group->Post("key", "word");
      EXPECT_EQ(group->Find("key", std::chrono::milliseconds(0)), "word");
    }
    if (env.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (env.rank != 0) {
      EXPECT_EQ(group->Await("key", 0), "word");
    }
    return std::string();
  }));
}

// notebook_launcher refuses this.
TEST(Accelerator, LaunchFromAProcessThatHasHadOne) {
  const auto results = RunRanks(1, [](const Env&) {
    { Accelerator accelerator; }
    const int code = Launch(
        [] {
          Accelerator accelerator;
          if (accelerator.num_processes() != 2) throw InvalidArgument("alone");
          accelerator.WaitForEveryone();
        },
        2, {.num_gpus = 0});
    return std::to_string(code);
  });
  EXPECT_EQ(results[0].said, "0");
}

}  // namespace
}  // namespace lathe
