// Loops over loaders of any data set, with one rank and with several.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/losses.h"
#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/samplers.h"
#include "lathe/data/loading/tensor_dataset.h"
#include "lathe/distributed/accelerator_loaders_testing.h"
#include "lathe/distributed/launch/launch.h"

namespace lathe {
namespace {

// tests/golden/make_general_loop.py has the same loop in PyTorch.
struct Case {
  TensorDataset<2> data;
  std::vector<std::vector<float>> parameters;
  std::vector<double> losses;
};

Case CaseOf(const nlohmann::json& json) {
  const auto inputs = json.at("inputs").get<std::vector<float>>();
  const auto targets = json.at("targets").get<std::vector<int64_t>>();
  return {TensorDataset(Tensor::FromVector(inputs, {std::ssize(targets), kFeatures}),
                        Tensor::FromVector(targets)),
          json.at("parameters").get<std::vector<std::vector<float>>>(),
          json.at("losses").get<std::vector<double>>()};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const nlohmann::json file = ParseJson(ReadFile("distributed/testdata/general_loop.json"));
  for (const auto& json : file.at("cases")) cases.push_back(CaseOf(json));
  return cases;
}

TEST(GeneralLoop, HasPyTorchsLossesWithAnyNumberOfRanks) {
  for (const Case& one : Cases()) {
    const auto losses = ExpectSameForAll([&](const Env& env) {
      Accelerator accelerator(Options(env));
      Mlp model;
      const auto parameters = model.Parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        Tensor tensor = parameters[i].tensor;
        tensor.CopyFrom(Tensor::FromVector(one.parameters[i], tensor.shape()));
      }
      DataLoader train(one.data, {.batch_size = 5});
      return Train(accelerator, model, train);
    });
    ExpectNear(losses, one.losses, 2e-6);
  }
}

TEST(GeneralLoop, ShufflesAndHasThreads) {
  ExpectSameForAll([](const Env& env) {
    Accelerator accelerator(Options(env));
    Mlp model;
    DataLoader train(Rows(41), {.batch_size = 6, .shuffle = true, .num_workers = 3});
    return Train(accelerator, model, train);
  });
}

TEST(GeneralLoop, Accumulates) {
  ExpectSameForAll([](const Env& env) {
    AcceleratorOptions options = Options(env);
    options.gradient_accumulation_steps = 3;
    Accelerator accelerator(options);
    Mlp model;
    DataLoader train(Rows(41), {.batch_size = 6});  // the last window has one batch of 5
    return Train(accelerator, model, train);
  });
}

// A stream has the losses of the same rows in a data set, also if its end cuts a window short.
TEST(GeneralLoop, Streams) {
  for (const int64_t steps : {1, 3}) {
    for (const int64_t rows : {41, 42}) {
      const auto body = [&](bool as_stream) {
        return [=](const Env& env) {
          AcceleratorOptions options = Options(env);
          options.gradient_accumulation_steps = steps;
          Accelerator accelerator(options);
          Mlp model;
          if (!as_stream) {
            DataLoader train(Rows(rows), {.batch_size = 6});
            return Train(accelerator, model, train);
          }
          DataLoader train(RowStream(Rows(rows)), {.batch_size = 6});
          return Train(accelerator, model, train);
        };
      };
      ExpectNear(ExpectSameForAll(body(true)), LossesOf(1, body(false)), 1e-6);
    }
  }
}

// With a sampler that gives a batch of one sample, all ranks but one have a stand-in.
TEST(GeneralLoop, Samplers) {
  std::vector<double> weights;
  for (int64_t i = 0; i < 20; ++i) weights.push_back(static_cast<double>(i % 4));
  ExpectSameForAll([&](const Env& env) {
    Accelerator accelerator(Options(env));
    Mlp model;
    DataLoader train(Rows(20), {.batch_size = 4, .sampler = WeightedRandomSampler(weights, 13)});
    return Train(accelerator, model, train);
  });
}

// A mean of weighted losses: the data set says how much each sample counts.
struct Weighted : TensorDataset<3> {
  using TensorDataset<3>::TensorDataset;
  double Weight(int64_t i) const override { return tensors()[2].data<float>()[i]; }
  int64_t Length(int64_t i) const override { return 1 + i * 7 % 5; }
};

Tensor WeightedMse(const Tensor& outputs, const Tensor& targets, const Tensor& weights) {
  const Tensor difference = Sub(outputs, targets);
  double sum = 0;
  for (const float w : weights.ToVector<float>()) sum += w;
  return Scale(Sum(Mul(Mul(difference, difference), weights)), sum > 0 ? 1 / sum : 0);
}

// A stream of the same rows, which says the same.
struct WeightedStream : IterableDataset<std::array<Tensor, 3>> {
  explicit WeightedStream(Weighted all) : rows(std::move(all)) {}
  std::function<std::optional<std::array<Tensor, 3>>()> Start(int64_t) const override {
    return [this, i = int64_t{0}]() mutable -> std::optional<std::array<Tensor, 3>> {
      if (i == rows.Size()) return std::nullopt;
      return rows.Get(i++);
    };
  }
  double Weight(const std::array<Tensor, 3>& sample) const override {
    return sample[2].data<float>()[0];
  }
  Weighted rows;
};

Weighted WeightedRows() {
  std::vector<float> inputs, targets, weights;
  for (int64_t i = 0; i < 23; ++i) {
    inputs.push_back(std::sin(static_cast<float>(i)));
    targets.push_back(std::cos(static_cast<float>(i)));
    weights.push_back(0.25f * static_cast<float>(i % 4));
  }
  return Weighted(Tensor::FromVector(inputs, {23, 1}), Tensor::FromVector(targets, {23, 1}),
                  Tensor::FromVector(weights, {23, 1}));
}

// Returns a rank's loop over the loader that make() returns.
template <typename Make>
std::function<std::string(const Env&)> WeightedLoop(Make make, bool by_loader = true) {
  return [=](const Env& env) {
    Accelerator accelerator(Options(env));
    Slope model;
    model.Initialize(1);
    SGD optimizer(model.Parameters(), {.lr = 0.1});
    DataLoader train = make();
    accelerator.Prepare(model, optimizer, train);
    std::ostringstream losses;
    losses.precision(12);
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& batch : train) {
        const auto& [x, y, w] = batch;
        const Tensor loss = WeightedMse(Linear(x, model.weight, Tensor()), y, w);
        double weight = 0;
        for (const float each : w.template ToVector<float>()) weight += each;
        if (by_loader) {
          accelerator.Backward(loss);
        } else {  // what the loader knows, one may also say
          accelerator.Backward(loss, batch.share.stand_in ? 0 : weight);
        }
        optimizer.Step();
        optimizer.ZeroGrad();
        losses << accelerator.last_loss() << ' ';
      }
    }
    return losses.str();
  };
}

TEST(GeneralLoop, WeightsOfSamples) {
  const auto make = [] { return DataLoader(WeightedRows(), {.batch_size = 5, .shuffle = true}); };
  ExpectNear(ExpectSameForAll(WeightedLoop(make)), LossesOf(3, WeightedLoop(make, false)), 1e-6);
}

TEST(GeneralLoop, WeightsAndShufflingOfStreams) {
  const auto in_order = [] { return DataLoader(WeightedRows(), {.batch_size = 5}); };
  const auto stream = [] { return DataLoader(WeightedStream(WeightedRows()), {.batch_size = 5}); };
  const auto shuffled = [] {
    return DataLoader(WeightedStream(WeightedRows()), {.batch_size = 5, .shuffle_buffer = 8});
  };
  const std::vector<double> losses = ExpectSameForAll(WeightedLoop(stream));
  ExpectNear(losses, LossesOf(1, WeightedLoop(in_order)), 1e-6);
  EXPECT_NE(ExpectSameForAll(WeightedLoop(shuffled)), losses);
}

TEST(GeneralLoop, GatherForMetricsGivesEverySampleOnceInOrder) {
  for (const int n : {1, 2, 3}) {
    ExpectAllWell(RunRanks(n, [](const Env& env) {
      Accelerator accelerator(Options(env));
      for (int64_t size = 1; size <= 11; ++size) {
        DataLoader loader(Rows(size), {.batch_size = 4});
        DataLoader stream(RowStream(Rows(size)), {.batch_size = 4});
        accelerator.Prepare(loader, stream);
        const std::vector<int64_t> expected = Rows(size).tensors()[1].ToVector<int64_t>();
        for (auto* each : {&loader, &stream}) {
          std::vector<int64_t> seen;
          for (auto& [inputs, targets] : *each) {
            for (const int64_t t : accelerator.GatherForMetrics(targets).ToVector<int64_t>())
              seen.push_back(t);
          }
          EXPECT_EQ(seen, expected);
        }
      }
      return std::string();
    }));
  }
}

TEST(GeneralLoop, SkipFirstBatches) {
  ExpectAllWell(RunRanks(2, [](const Env& env) {
    Accelerator accelerator(Options(env));
    DataLoader loader(Rows(20), {.batch_size = 3, .shuffle = true});
    DataLoader same = loader;
    DataLoader stream(RowStream(Rows(20)), {.batch_size = 3});
    accelerator.Prepare(loader, same, stream);
    std::vector<std::vector<int64_t>> all, rest, late;
    for (auto& batch : same) all.push_back(batch.indices);
    DataLoader skipped = accelerator.SkipFirstBatches(loader, 4);
    for (auto& batch : skipped) rest.push_back(batch.indices);
    EXPECT_EQ(rest, (std::vector<std::vector<int64_t>>{all.begin() + 4, all.end()}));
    DataLoader later = accelerator.SkipFirstBatches(stream, 5);
    for (auto& batch : later) late.push_back(batch.indices);
    EXPECT_EQ(late, (std::vector<std::vector<int64_t>>{
                        env.rank == 0 ? std::vector<int64_t>{15, 17} : std::vector<int64_t>{16},
                        env.rank == 0 ? std::vector<int64_t>{18} : std::vector<int64_t>{19}}));
    return std::string();
  }));
}

// A loop that is saved after each batch and goes on elsewhere has the losses of one that never
// stopped, with another number of ranks, too.
TEST(GeneralLoop, GoesOnFromASavedState) {
  const std::string folder = testing::TempDir() + "general_loop_states/";
  const auto body = [&](int64_t stop_after, bool load) {
    return [=](const Env& env) {
      Accelerator accelerator(Options(env));
      Mlp model;
      SGD optimizer(model.Parameters(), {.lr = 0.3, .momentum = 0.9});
      DataLoader train(Rows(17), {.batch_size = 5, .shuffle = true});
      accelerator.Prepare(model, optimizer, train);
      if (load) accelerator.LoadState(folder + std::to_string(stop_after));
      std::ostringstream losses;
      losses.precision(12);
      int64_t step = 0;
      while (train.epoch() < 2) {
        for (auto& [inputs, targets] : train) {
          accelerator.Backward(CrossEntropy(model(inputs), targets));
          optimizer.Step();
          optimizer.ZeroGrad();
          losses << accelerator.last_loss() << ' ';
          if (++step == stop_after && !load) {
            accelerator.SaveState(folder + std::to_string(stop_after));
            return losses.str();
          }
        }
      }
      return losses.str();
    };
  };
  const std::vector<double> whole = LossesOf(1, body(-1, false));
  ASSERT_EQ(whole.size(), 8u);
  for (const int64_t stop : {1, 3, 4, 6}) {
    std::vector<double> parts = LossesOf(2, body(stop, false));
    for (const double loss : LossesOf(3, body(stop, true))) parts.push_back(loss);
    ExpectNear(parts, whole, 1e-6);
  }
}

// The same program under lathe launch.
TEST(GeneralLoop, Launches) {
  const auto results = RunRanks(1, [](const Env&) {
    const int code = Launch(
        [] {
          Accelerator accelerator;
          Mlp model;
          DataLoader train(Rows(23), {.batch_size = 5, .shuffle = true});
          Train(accelerator, model, train);
          if (accelerator.num_processes() != 3) throw InvalidArgument("alone");
        },
        3, {.num_gpus = 0});
    return std::to_string(code);
  });
  EXPECT_EQ(results[0].said, "0");
}

}  // namespace
}  // namespace lathe
