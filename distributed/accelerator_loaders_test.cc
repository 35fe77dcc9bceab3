// Loops over loaders of any data set, with one rank and with several.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/losses.h"
#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/samplers.h"
#include "lathe/data/loading/tensor_dataset.h"
#include "lathe/distributed/accelerator_testing.h"
#include "lathe/distributed/launch/launch.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

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
  std::ifstream file("distributed/testdata/general_loop.json");
  std::vector<Case> cases;
  for (const auto& json : nlohmann::json::parse(file).at("cases")) cases.push_back(CaseOf(json));
  return cases;
}

// Rows of random-looking numbers.
TensorDataset<2> Rows(int64_t n) {
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

std::vector<double> Numbers(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<double>(in), {}};
}

// Returns the losses that all ranks say.
std::vector<double> LossesOf(int n, const std::function<std::string(const Env&)>& body) {
  const auto results = RunRanks(n, body);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.said;
    EXPECT_EQ(result.said, results[0].said);
  }
  return Numbers(results[0].said);
}

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double limit) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], limit * std::fabs(b[i])) << "step " << i;
}

// Compares the losses of 2, 3 and 4 ranks with those of one, which it returns.
std::vector<double> ExpectSameForAll(const std::function<std::string(const Env&)>& body) {
  const std::vector<double> alone = LossesOf(1, body);
  EXPECT_FALSE(alone.empty());
  for (const int n : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(n) + " ranks");
    ExpectNear(LossesOf(n, body), alone, 1e-6);
  }
  return alone;
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

// --- what goes wrong ---

TEST(GeneralLoop, RefusesDifferentData) {
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              DataLoader loader(Rows(5 + env.rank), {.batch_size = 2});
              accelerator.Prepare(loader);
            }),
            "[preflight] rank 1 has dataset of size 6 but rank 0 has dataset of size 5");
  const std::string said = Refusal([](Accelerator& accelerator, const Env& env) {
    const TensorDataset<2> data = Rows(5);
    if (env.rank == 1) data.tensors()[0].data<float>()[7] += 1;
    DataLoader loader(data, {.batch_size = 2});
    accelerator.Prepare(loader);
  });
  EXPECT_TRUE(said.starts_with("[preflight] rank 1 has dataset with fingerprint ")) << said;
  EXPECT_EQ(Refusal([](Accelerator& accelerator, const Env& env) {
              DataLoader loader(Rows(5),
                                {.batch_size = 2, .sampler = RandomSampler(5, 5 + env.rank)});
              accelerator.Prepare(loader);
            }),
            "[preflight] rank 1 has samples of the sampler 6 but rank 0 has samples of the "
            "sampler 5");
}

// If Get throws on one rank, that rank names the sample. The others end soon.
TEST(GeneralLoop, AGetThatThrowsEndsTheJob) {
  for (const int n : {1, 2, 3}) {
    for (const bool in_stream : {false, true}) {
      const auto results = RunRanks(n, [&](const Env& env) {
        Accelerator accelerator(Options(env));
        Mlp model;
        if (in_stream) {
          struct Bad : RowStream {
            Bad() : RowStream(Rows(20)) {}
            std::function<std::optional<std::array<Tensor, 2>>()> Start(
                int64_t epoch) const override {
              return [next = RowStream::Start(epoch), i = 0]() mutable {
                if (i++ == 13) throw std::runtime_error("torn");
                return next();
              };
            }
          };
          DataLoader train(Bad(), {.batch_size = 6});
          return Train(accelerator, model, train);
        }
        const MapDataset bad(Subset(Rows(20), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}),
                             [](std::array<Tensor, 2> row) {
                               if (row[0].data<float>()[0] == std::sin(static_cast<float>(7 * 13)))
                                 throw std::runtime_error("torn");
                               return row;
                             });
        DataLoader train(bad, {.batch_size = 6});
        return Train(accelerator, model, train);
      });
      int told = 0;
      for (const RankResult& result : results) {
        EXPECT_NE(result.exit_code, 0);
        EXPECT_LT(result.seconds, 15);
        told += result.said == (in_stream ? "[data_loader] sample 13 of the stream: torn"
                                          : "[data_loader] sample 13: torn");
      }
      EXPECT_EQ(told, in_stream ? n : 1) << results[0].said;
    }
  }
}

TEST(GeneralLoop, ACollateFunctionThatReturnsNothing) {
  for (const int n : {1, 3}) {
    const auto results = RunRanks(n, [&](const Env& env) {
      Accelerator accelerator(Options(env));
      Mlp model;
      DataLoader train(Rows(20), {.batch_size = 6},
                       [](std::vector<std::array<Tensor, 2>>) { return TensorBatch<2>(); });
      return Train(accelerator, model, train);
    });
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.said.starts_with(
          "[collate] the collate function returned nothing; the batch has samples "))
          << result.said;
      EXPECT_LT(result.seconds, 15);
    }
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
