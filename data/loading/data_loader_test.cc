#include "lathe/data/loading/data_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/data/loading/loader_testing.h"
#include "lathe/data/loading/samplers.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

TEST(DataLoaderTest, StacksTheRowsOfTensors) {
  DataLoader loader(Rows(10), {.batch_size = 4});
  static_assert(std::is_same_v<decltype(loader), DataLoader<TensorBatch<2>>>);
  int64_t begin = 0;
  for (auto& [inputs, targets] : loader) {
    const int64_t size = std::min<int64_t>(4, 10 - begin);
    ASSERT_EQ(inputs.shape(), (Shape{size, 2}));
    ASSERT_EQ(targets.shape(), Shape{size});
    EXPECT_EQ(targets.dtype(), DType::kI64);
    for (int64_t i = 0; i < size; ++i) {
      EXPECT_EQ(inputs.data<float>()[2 * i + 1], static_cast<float>(begin + i) + 0.5f);
      EXPECT_EQ(targets.data<int64_t>()[i], 10 * (begin + i));
    }
    begin += size;
  }
  EXPECT_EQ(begin, 10);
}

TEST(DataLoaderTest, ABatchKnowsItsSamples) {
  DataLoader loader(Rows(10), {.batch_size = 4, .shuffle = true, .seed = 3});
  int64_t step = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    Order seen;
    for (const TensorBatch<>& batch : loader) {
      EXPECT_EQ(batch.step, step++);
      EXPECT_EQ(batch.size(), batch.num_samples());
      EXPECT_EQ(batch.share.weight, static_cast<double>(batch.size()));
      EXPECT_EQ(batch.share.global_size, batch.size());
      EXPECT_FALSE(batch.share.stand_in);
      for (size_t i = 0; i < batch.indices.size(); ++i)
        EXPECT_EQ(batch[1].data<int64_t>()[i], 10 * batch.indices[i]);
      seen.insert(seen.end(), batch.indices.begin(), batch.indices.end());
    }
    EXPECT_EQ(seen, ShuffledOrder(10, 3, epoch));
  }
}

TEST(DataLoaderTest, StacksPlainSamples) {
  const MapDataset pairs(Numbers(3), [](int64_t i) {
    return std::tuple(std::vector<int>{static_cast<int>(i), 7}, 0.5 * static_cast<double>(i),
                      i % 2 == 0);
  });
  DataLoader loader(pairs, {.batch_size = 3});
  const auto it = loader.begin();
  const auto& [ids, scores, even] = *it;
  EXPECT_EQ(ids.ToVector<int64_t>(), (Order{0, 7, 1, 7, 2, 7}));
  EXPECT_EQ(ids.shape(), (Shape{3, 2}));
  EXPECT_EQ(scores.ToVector<float>(), (std::vector<float>{0, 0.5f, 1}));
  EXPECT_EQ(even.dtype(), DType::kBool);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(even.data<bool>()[i], i % 2 == 0);

  DataLoader single(Numbers(3), {.batch_size = 2});
  static_assert(std::is_same_v<decltype(single), DataLoader<TensorBatch<1>>>);
  EXPECT_EQ((*single.begin())[0].ToVector<int64_t>(), (Order{0, 1}));
}

TEST(DataLoaderTest, ACollateFunctionDecidesOnTheType) {
  DataLoader loader(Numbers(5), {.batch_size = 2}, [](const std::vector<int64_t>& samples) {
    std::string text;
    for (const int64_t i : samples) text += std::to_string(i);
    return text;
  });
  static_assert(std::is_same_v<decltype(loader), DataLoader<std::string>>);
  std::vector<std::string> all;
  for (auto it = loader.begin(); it != loader.end(); ++it) {
    all.push_back(*it);
    EXPECT_EQ(it.info().num_samples(), std::ssize(*it));
  }
  EXPECT_EQ(all, (std::vector<std::string>{"01", "23", "4"}));
}

// JSON converts to bool, as pointers do, but throws unless it is one.
TEST(DataLoaderTest, ACollateFunctionMayReturnJson) {
  DataLoader loader(Numbers(3), {.batch_size = 2}, [](const std::vector<int64_t>& samples) {
    return nlohmann::json{{"first", samples[0]}};
  });
  std::vector<int64_t> firsts;
  for (const nlohmann::json& batch : loader) firsts.push_back(batch.at("first").get<int64_t>());
  EXPECT_EQ(firsts, (std::vector<int64_t>{0, 2}));
}

// A dataset that may not be copied goes in as a shared pointer.
TEST(DataLoaderTest, TakesASharedDataset) {
  struct Fixed : Numbers {
    Fixed() : Numbers(4) {}
    Fixed(const Fixed&) = delete;
  };
  DataLoader loader(std::make_shared<const Fixed>(), {.batch_size = 4});
  EXPECT_EQ((*loader.begin())[0].numel(), 4);
}

TEST(DataLoaderTest, TheNumberOfThreadsChangesNothing) {
  // Later batches are made faster, so that threads overtake each other.
  const MapDataset slow(Numbers(60), [](int64_t i) {
    std::this_thread::sleep_for(std::chrono::microseconds(i % 7 == 0 ? 2000 : 50));
    return i;
  });
  for (const int workers : {0, 1, 2, 7}) {
    for (const int prefetch : {0, 1, 20}) {
      DataLoader loader(
          slow, {.batch_size = 4, .shuffle = true, .prefetch = prefetch, .num_workers = workers});
      Order seen;
      for (const auto& batch : loader) {
        const Order part = batch[0].ToVector<int64_t>();
        seen.insert(seen.end(), part.begin(), part.end());
      }
      EXPECT_EQ(seen, ShuffledOrder(60, 42, 0)) << workers << " " << prefetch;
    }
  }
}

TEST(DataLoaderTest, SeveralThreadsWorkAtOnce) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  int inside = 0, most = 0;
  const MapDataset slow(Numbers(40), [&](int64_t i) {
    {
      std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
      most = std::max(most, ++inside);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::lock_guard lock(mutex);
    --inside;
    return i;
  });
  DataLoader loader(slow, {.batch_size = 1, .num_workers = 3});
  for ([[maybe_unused]] const auto& batch : loader) {
  }
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(most, 3);
}

class Workers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Numbers, Workers, testing::Values(0, 1, 4));

TEST_P(Workers, AnIteratorMayBeDroppedEarlyAndOutliveTheLoader) {
  for (int repeat = 0; repeat < 30; ++repeat) {
    std::optional<DataLoader<TensorBatch<1>>> loader(
        std::in_place, Numbers(200), DataLoaderOptions{.batch_size = 2, .num_workers = GetParam()});
    { auto unused = loader->begin(); }
    auto it = loader->begin();
    auto other = loader->begin();
    loader.reset();
    ++it;
    EXPECT_EQ(it->indices, (Order{2, 3}));
    EXPECT_EQ(other->indices, (Order{0, 1}));
  }
}

TEST_P(Workers, GoesOnFromItsState) {
  const auto make = [] {
    return DataLoader(Rows(10), {.batch_size = 4, .shuffle = true, .num_workers = GetParam()});
  };
  std::vector<Order> whole;
  std::vector<nlohmann::json> states;  // after each batch
  auto loader = make();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : loader) {
      whole.push_back(batch.indices);
      states.push_back(loader.StateDict().values);
    }
  }
  ASSERT_EQ(whole.size(), 6u);
  for (size_t i = 0; i < whole.size(); ++i) {
    auto resumed = make();
    StateDict state;
    state.values = states[i];
    resumed.LoadStateDict(state);
    std::vector<Order> rest(whole.begin(), whole.begin() + static_cast<int64_t>(i) + 1);
    while (resumed.epoch() < 2) {
      for (const auto& batch : resumed) rest.push_back(batch.indices);
    }
    EXPECT_EQ(rest, whole) << i;
  }
}

TEST(DataLoaderTest, ASamplerDecidesOnTheOrder) {
  const Sampler twice{.num_samples = 5, .order = [](uint64_t, int64_t epoch) {
                        return epoch == 0 ? Order{4, 4, 0, 1, 0} : Order{3, 3, 3, 3, 3};
                      }};
  DataLoader loader(Rows(5), {.batch_size = 2, .sampler = twice});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loader.num_samples(), 5);
  std::vector<Order> seen;
  for (const auto& batch : loader) seen.push_back(batch.indices);
  EXPECT_EQ(seen, (std::vector<Order>{{4, 4}, {0, 1}, {0}}));
  EXPECT_EQ((*loader.begin()).indices, (Order{3, 3}));

  const auto bad = [](Order order) {
    DataLoader wrong(
        Rows(5), {.batch_size = 2, .sampler = {.num_samples = 2, .order = [=](uint64_t, int64_t) {
                                                 return order;
                                               }}});
    return MessageOf([&] { wrong.begin(); });
  };
  EXPECT_EQ(bad({1, 2, 3}), "[sampler] expected an order of 2 samples but got 3");
  EXPECT_EQ(bad({1, 5}), "[sampler] sample 5 does not exist; the data set has 5 samples");
  EXPECT_EQ(bad({-1, 4}), "[sampler] sample -1 does not exist; the data set has 5 samples");

  DataLoader thrower(Rows(5),
                     {.sampler = {.num_samples = 2, .order = [](uint64_t, int64_t) -> Order {
                                    throw std::runtime_error("no weights");
                                  }}});
  thrower.SetEpoch(3);
  EXPECT_EQ(MessageOf([&] { thrower.begin(); }), "[sampler] the order of epoch 3: no weights");
}

TEST(ShardTest, EverySampleComesOnceWhateverTheNumberOfRanks) {
  for (const int world_size : {1, 2, 3, 5}) {
    for (int64_t n = 1; n <= 20; ++n) {
      std::vector<DataLoader<TensorBatch<2>>> loaders;
      for (int rank = 0; rank < world_size; ++rank) {
        loaders.emplace_back(
            Rows(n), DataLoaderOptions{.batch_size = 1 + n % 7, .shuffle = true, .prefetch = 0});
        loaders.back().Shard(rank, world_size, true, nullptr);
      }
      const Order order = ShuffledOrder(n, 42, 0);
      std::vector<DataLoader<TensorBatch<2>>::Iterator> batches;
      for (auto& loader : loaders) batches.push_back(loader.begin());
      size_t begin = 0;
      for (int64_t b = 0; b < loaders[0].size(); ++b) {
        std::map<int32_t, int64_t> placed;
        double weight = 0;
        for (auto& batch : batches) {
          weight += batch->share.weight;
          EXPECT_EQ(batch->share.stand_in, batch->share.weight == 0);
          ASSERT_GT(batch->size(), 0);
          for (size_t i = 0; !batch->share.stand_in && i < batch->indices.size(); ++i) {
            EXPECT_TRUE(placed.emplace(batch->sample_ids[i], batch->indices[i]).second);
            EXPECT_EQ((*batch)[1].data<int64_t>()[i], 10 * batch->indices[i]);
          }
          EXPECT_EQ(batch->share.global_weight, static_cast<double>(batch->share.global_size));
        }
        EXPECT_EQ(weight, batches[0]->share.global_weight);
        ASSERT_EQ(static_cast<double>(placed.size()), weight);
        for (const auto& [place, index] : placed)
          EXPECT_EQ(index, order[begin + static_cast<size_t>(place)]);
        begin += placed.size();
        for (auto& batch : batches) ++batch;
      }
      for (const auto& batch : batches) EXPECT_TRUE(batch == loaders[0].end());
    }
  }
}

}  // namespace
}  // namespace lathe
