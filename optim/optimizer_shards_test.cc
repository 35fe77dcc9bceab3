// Optimizers whose updates are sharded. Threads stand in for ranks.
#include "lathe/optim/optimizer_shards.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/optimizers/optimizers.h"

namespace lathe {
namespace {

constexpr int kSize = 3, kSteps = 6;
using Ranges = std::vector<ElementRange>;

// The state that the ranks share for their collectives.
struct Meeting {
  std::barrier<> barrier{kSize};
  std::vector<float*> data = std::vector<float*>(kSize);
  std::vector<double> numbers = std::vector<double>(kSize);
  std::vector<int64_t> gathered = std::vector<int64_t>(kSize);  // sums of the sizes of `changed`
};

std::shared_ptr<const OptimizerShards> Shards(Meeting& meeting, int rank, Ranges ranges) {
  auto shards = std::make_shared<OptimizerShards>();
  shards->ranges = ranges;
  shards->rank = rank;
  shards->size = kSize;
  for (const ElementRange& range : ranges) {
    shards->own.push_back(StripeOfRank(range, rank, kSize));
    for (const ElementRange& other : Difference(range, shards->own))
      shards->others.push_back(other);
  }
  shards->gather = [&meeting, rank, ranges](std::span<float> data, const Ranges& changed) {
    meeting.data[rank] = data.data();
    meeting.barrier.arrive_and_wait();
    for (int other = 0; other < kSize; ++other) {
      for (const ElementRange& range : ranges) {
        if (other == rank) continue;
        for (const ElementRange& piece : Intersection(StripeOfRank(range, other, kSize), changed)) {
          std::copy(meeting.data[other] + piece.begin, meeting.data[other] + piece.end,
                    data.data() + piece.begin);
        }
      }
    }
    for (const ElementRange& range : changed) meeting.gathered[rank] += range.size();
    meeting.barrier.arrive_and_wait();
  };
  shards->sum = [&meeting, rank](double mine) {
    meeting.numbers[rank] = mine;
    meeting.barrier.arrive_and_wait();
    double sum = 0;
    for (const double number : meeting.numbers) sum += number;
    meeting.barrier.arrive_and_wait();
    return sum;
  };
  return shards;
}

struct Model : Module {
  Model() {
    table = RegisterParameter("table", {300, 20}, Init::Normal(1));
    weight = RegisterParameter("weight", {50, 37}, Init::Normal(1));
    bias = RegisterParameter("bias", {7}, Init::Normal(1));
    Initialize(5);
  }
  Tensor table, weight, bias;
};

struct Result {
  std::vector<float> values, narrow, norms;
  bool operator==(const Result&) const = default;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const Module&)>;

// Trains with gradients that are functions of the step; meeting: null to share nothing. The arena
// has bias [0, 7), weight [16, 1866), table [1872, 7872).
Result Train(const MakeOptimizer& make, Meeting* meeting, int rank) {
  Model model;
  const auto optimizer = make(model);
  auto present = std::make_shared<CurrentShards>();
  if (meeting != nullptr) optimizer->ShardUpdates(present);
  Result result;
  bool copies_follow = true;
  for (int step = 0; step < kSteps; ++step) {
    if (meeting != nullptr && step == 1) present->now = Shards(*meeting, rank, {{0, 1000}});
    if (meeting != nullptr && step == 3) {
      present->now = Shards(*meeting, rank, {{0, 1700}, {1872, 7000}});
    }
    if (meeting != nullptr && step == 5) present->now = nullptr;
    model.bias.SetRequiresGrad(step != 3);
    optimizer->ZeroGrad();
    for (Tensor p : {model.table, model.weight, model.bias}) {
      const std::span<float> grad = p.MaterializeGrad().values<float>();
      for (size_t i = 0; i < grad.size(); ++i)
        grad[i] = (i + static_cast<size_t>(step)) % 5 == 0 ? 0 : std::sin(static_cast<float>(i));
    }
    if (present->now != nullptr) {
      // This rank must not use the gradients of the other ranks' stripes.
      float* grads = optimizer->arena().RawGrads().data<float>();
      for (const auto& entry : optimizer->arena().entries()) {
        const ElementRange all = {entry.offset, entry.offset + entry.parameter.tensor.numel()};
        for (const ElementRange& other : Intersection(all, present->now->others))
          std::fill_n(grads + other.begin, other.size(), 7.0f);
      }
      model.table.impl()->mutable_gradient().partial_hint = "";
    }
    LowPrecisionCopy(model.weight, DType::kBF16);
    result.norms.push_back(static_cast<float>(ClipGradNorm(*optimizer, 2.5).Item()));
    optimizer->Step();
    EXPECT_FALSE(optimizer->step_is_half_done());
    copies_follow = copies_follow && model.weight.impl()->low_precision_version ==
                                         model.weight.impl()->storage->version();
  }
  result.values = optimizer->arena().values().ToVector<float>();
  if (dynamic_cast<AdamW*>(optimizer.get()) != nullptr) {
    EXPECT_TRUE(copies_follow);
  }
  result.narrow = LowPrecisionCopy(model.weight, DType::kBF16).To(DType::kF32).ToVector<float>();
  return result;
}

void CompareWithOne(const MakeOptimizer& make) {
  const Result alone = Train(make, nullptr, 0);
  Meeting meeting;
  std::vector<Result> results(kSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] { results[rank] = Train(make, &meeting, rank); });
  for (std::thread& thread : threads) thread.join();
  for (const Result& result : results) {
    EXPECT_TRUE(result == results[0]);
    for (int i = 0; i < kSteps; ++i) EXPECT_FLOAT_EQ(result.norms[i], alone.norms[i]);
    ASSERT_EQ(result.values.size(), alone.values.size());
    for (size_t i = 0; i < alone.values.size(); ++i)
      ASSERT_NEAR(result.values[i], alone.values[i], 1e-6) << i;
    EXPECT_TRUE(result.narrow ==
                Tensor::FromVector(std::vector<float>(result.values.begin() + 16,
                                                      result.values.begin() + 16 + 50 * 37))
                    .To(DType::kBF16)
                    .To(DType::kF32)
                    .ToVector<float>());
  }
}

TEST(OptimizerShards, AdamW) {
  CompareWithOne([](const Module& model) {
    return std::make_unique<AdamW>(DecayGroups(model.Parameters(), 0.01), AdamWOptions{.lr = 0.01});
  });
  CompareWithOne([](const Module& model) {
    return std::make_unique<AdamW>(model.Parameters(), AdamWOptions{.lr = 0.01, .weight_decay = 0});
  });
}

// Without decay AdamW asks which rows have gradients, and these parameters have none.
TEST(OptimizerShards, ScalarsAndEmptyParameters) {
  struct Small : Module {
    Small() {
      weight = RegisterParameter("weight", {40}, Init::Normal(1));
      RegisterParameter("none", {0, 3}, Init::Normal(1));
      scale = RegisterParameter("scale", {}, Init::Ones());
      Initialize(5);
    }
    Tensor weight, scale;
  };
  const auto train = [](Meeting* meeting, int rank) {
    Small model;
    AdamW optimizer(model.Parameters(), {.lr = 0.1, .weight_decay = 0});
    auto present = std::make_shared<CurrentShards>();
    const int64_t all = optimizer.arena().values().numel();
    if (meeting != nullptr) {
      present->now = Shards(*meeting, rank, {{0, all}});
      optimizer.ShardUpdates(present);
    }
    for (int step = 0; step < 4; ++step) {
      optimizer.ZeroGrad();
      model.weight.MaterializeGrad().Fill(step + 1);
      if (step % 2 == 1) model.scale.MaterializeGrad().Fill(2);
      optimizer.Step();
    }
    return optimizer.arena().values().ToVector<float>();
  };
  const std::vector<float> alone = train(nullptr, 0);
  Meeting meeting;
  std::vector<std::vector<float>> results(kSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] { results[rank] = train(&meeting, rank); });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) EXPECT_EQ(result, alone);
}

TEST(OptimizerShards, SGD) {
  for (const double momentum : {0.0, 0.9}) {
    CompareWithOne([momentum](const Module& model) {
      return std::make_unique<SGD>(model.Parameters(),
                                   SGDOptions{.lr = 0.01, .momentum = momentum});
    });
  }
}

TEST(OptimizerShards, ElementwiseOptimizers) {
  CompareWithOne([](const Module& model) {
    return std::make_unique<Adam>(DecayGroups(model.Parameters(), 0.1), AdamOptions{.lr = 0.01});
  });
  CompareWithOne([](const Module& model) {
    return std::make_unique<Lion>(DecayGroups(model.Parameters(), 0.1), LionOptions{.lr = 0.01});
  });
  CompareWithOne([](const Module& model) {
    return std::make_unique<RMSprop>(
        model.Parameters(),
        RMSpropOptions{.lr = 0.01, .eps = 1e-3, .momentum = 0.9, .centered = true});
  });
  CompareWithOne([](const Module& model) {
    return std::make_unique<Adagrad>(model.Parameters(),
                                     AdagradOptions{.lr = 0.01, .initial_accumulator_value = 0.1});
  });
}

// If the rows of a table that have gradients are known, only rows that ever had one are exchanged.
// Rows that had one before go on changing by their moments.
TEST(OptimizerShards, RowsOfATable) {
  const auto train = [](Meeting* meeting, int rank, double decay, int unknown_at) {
    Model model;
    AdamW optimizer(model.Parameters(), {.lr = 0.01, .weight_decay = decay});
    auto present = std::make_shared<CurrentShards>();
    if (meeting != nullptr) {
      // The ranks' stripes begin and end within rows.
      present->now = Shards(*meeting, rank, {{0, 1866}, {1872, 3500}, {3500, 7872}});
      optimizer.ShardUpdates(present);
    }
    for (int step = 0; step < kSteps; ++step) {
      optimizer.ZeroGrad();
      model.bias.MaterializeGrad().Fill(0.5 + step);
      model.weight.MaterializeGrad().Fill(-1);
      const std::span<float> grad = model.table.MaterializeGrad().values<float>();
      std::vector<int32_t> rows;
      for (int32_t row = step; row < 300; row += 41 + step) {
        rows.push_back(row);
        for (size_t i = 0; i < 20; ++i) {
          grad[static_cast<size_t>(row) * 20 + i] = std::sin(static_cast<float>(row + i));
        }
      }
      if (step != unknown_at) model.table.impl()->mutable_gradient().rows = rows;
      ClipGradNorm(optimizer, 1);
      optimizer.Step();
    }
    return optimizer.arena().values().ToVector<float>();
  };
  for (const auto& [decay, unknown_at] : {std::pair{0.0, -1}, {0.0, 2}, {0.1, -1}}) {
    const std::vector<float> alone = train(nullptr, 0, decay, unknown_at);
    Meeting meeting;
    std::vector<std::vector<float>> results(kSize);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank, decay = decay, unknown_at = unknown_at] {
        results[rank] = train(&meeting, rank, decay, unknown_at);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<float>& result : results) {
      EXPECT_TRUE(result == results[0]);
      ASSERT_EQ(result.size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(result[i], alone[i], 1e-6) << i;
    }
    const int64_t all = kSteps * (7 + 50 * 37 + 300 * 20);
    if (decay == 0 && unknown_at < 0) {
      EXPECT_LT(meeting.gathered[0], all / 2);
    } else if (decay != 0) {
      EXPECT_EQ(meeting.gathered[0], all);
    }
    for (const int64_t gathered : meeting.gathered) EXPECT_EQ(gathered, meeting.gathered[0]);
  }
}

TEST(OptimizerShards, AStepThatFailsIsHalfDone) {
  Model model;
  AdamW optimizer(model.Parameters(), {});
  auto present = std::make_shared<CurrentShards>();
  auto shards = std::make_shared<OptimizerShards>();
  shards->ranges = {{0, 100}};
  shards->own = {{0, 64}};
  shards->others = {{64, 100}};
  shards->gather = [](std::span<float>, const Ranges&) { throw InvalidArgument("lost"); };
  present->now = shards;
  optimizer.ShardUpdates(present);
  EXPECT_THROW(optimizer.Step(), Error);
  EXPECT_TRUE(optimizer.step_is_half_done());
}

TEST(OptimizerShards, PartsOfGradientsAreNotTakenForWholeOnes) {
  Model model;
  AdamW optimizer(model.Parameters(), {});
  optimizer.ZeroGrad();
  model.weight.MaterializeGrad().Fill(1);
  model.weight.impl()->mutable_gradient().partial_hint = "do something else";
  const auto expect_refusal = [&](const std::function<void()>& body) {
    try {
      body();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "[grad] this process holds only its part of the gradient");
      EXPECT_EQ(e.hint(), "do something else");
    }
  };
  expect_refusal([&] { model.weight.grad(); });
  expect_refusal([&] { model.weight.MaterializeGrad(); });
  expect_refusal([&] { optimizer.arena().grads(); });
  expect_refusal([&] { optimizer.Step(); });
  expect_refusal([&] { GradNorm(optimizer); });
  expect_refusal([&] { ClipGradNorm(optimizer, 1); });
  expect_refusal([&] { ClipGradValue(optimizer, 1); });
  optimizer.ZeroGrad();
  EXPECT_EQ(model.weight.MaterializeGrad().data<float>()[3], 0);
}

}  // namespace
}  // namespace lathe
