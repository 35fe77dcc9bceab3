// Loaders of IterableDatasets.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/data/loading/data_loader.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

// Gives 100 * epoch, 100 * epoch + 1 and so on, n numbers. Throws in place of `bad`.
struct Counter : IterableDataset<int64_t> {
  explicit Counter(int64_t size, int64_t bad_one = -1) : n(size), bad(bad_one) {}
  std::function<std::optional<int64_t>()> Start(int64_t epoch) const override {
    return [epoch, i = int64_t{0}, size = n, wrong = bad, over = false]() mutable {
      EXPECT_FALSE(over) << "read behind the end";
      over = i == size;
      if (over) return std::optional<int64_t>();
      if (i == wrong) throw InvalidArgument("line is torn");
      return std::optional(100 * epoch + i++);
    };
  }
  int64_t n, bad;
};

std::vector<Order> BatchesOf(DataLoader<TensorBatch<1>>& loader) {
  std::vector<Order> all;
  for (const auto& batch : loader) all.push_back(batch[0].ToVector<int64_t>());
  return all;
}

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

class Streams : public testing::TestWithParam<int> {};  // threads
INSTANTIATE_TEST_SUITE_P(Threads, Streams, testing::Values(0, 1, 3));

TEST_P(Streams, AreCutIntoBatches) {
  DataLoader loader(Counter(7), {.batch_size = 3, .num_workers = GetParam()});
  EXPECT_FALSE(loader.has_size());
  EXPECT_EQ(BatchesOf(loader), (std::vector<Order>{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(BatchesOf(loader), (std::vector<Order>{{100, 101, 102}, {103, 104, 105}, {106}}));
  DataLoader whole(Counter(6), {.batch_size = 3, .num_workers = GetParam()});
  EXPECT_EQ(BatchesOf(whole), (std::vector<Order>{{0, 1, 2}, {3, 4, 5}}));
  DataLoader none(Counter(0), {.batch_size = 3, .num_workers = GetParam()});
  EXPECT_EQ(BatchesOf(none), std::vector<Order>());
}

TEST_P(Streams, DropLast) {
  DataLoader loader(Counter(7), {.batch_size = 3, .drop_last = true, .num_workers = GetParam()});
  EXPECT_EQ(BatchesOf(loader), (std::vector<Order>{{0, 1, 2}, {3, 4, 5}}));
  DataLoader few(Counter(2), {.batch_size = 3, .drop_last = true, .num_workers = GetParam()});
  EXPECT_EQ(BatchesOf(few), std::vector<Order>());
}

TEST_P(Streams, AreSharedByRanks) {
  for (const int world_size : {2, 3, 4}) {
    std::vector<DataLoader<TensorBatch<1>>> loaders;
    const auto passes = std::make_shared<LoaderPasses>();
    for (int rank = 0; rank < world_size; ++rank) {
      loaders.emplace_back(Counter(8),
                           DataLoaderOptions{.batch_size = 3, .num_workers = GetParam()});
      loaders.back().Shard(rank, world_size, true, rank == 0 ? passes : nullptr);
    }
    std::vector<DataLoader<TensorBatch<1>>::Iterator> batches;
    for (auto& loader : loaders) batches.push_back(loader.begin());
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t size = b < 2 ? 3 : 2;
      Order seen(static_cast<size_t>(size), -1);
      double weight = 0;
      for (auto& batch : batches) {
        weight += batch->share.weight;
        EXPECT_EQ(batch->share.global_weight, static_cast<double>(size));
        EXPECT_EQ(batch->step, b);
        for (size_t i = 0; !batch->share.stand_in && i < batch->sample_ids.size(); ++i)
          seen[static_cast<size_t>(batch->sample_ids[i])] = (*batch)[0].data<int64_t>()[i];
      }
      EXPECT_EQ(weight, static_cast<double>(size));
      for (int64_t i = 0; i < size; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], 3 * b + i);
      // Accumulate must know the last batch.
      EXPECT_EQ(passes->entries.at(0)->batches_left, b < 2 ? LoaderPasses::kUnknown : 0);
      for (auto& batch : batches) ++batch;
    }
    for (const auto& batch : batches) EXPECT_TRUE(batch == loaders[0].end());
  }
}

TEST_P(Streams, AnErrorNamesTheSampleAndComesInItsPlace) {
  // The error comes up while batch 0 is made, since the loader reads ahead.
  DataLoader loader(Counter(9, /*bad=*/4), {.batch_size = 3, .num_workers = GetParam()});
  auto it = loader.begin();
  EXPECT_EQ((*it)[0].ToVector<int64_t>(), (Order{0, 1, 2}));
  EXPECT_EQ(MessageOf([&] { ++it; }), "[data_loader] sample 4 of the stream: line is torn");
  EXPECT_TRUE(it == loader.end());
}

TEST_P(Streams, GoOnFromTheirState) {
  DataLoader loader(Counter(7), {.batch_size = 3, .num_workers = GetParam()});
  std::vector<nlohmann::json> states;
  for ([[maybe_unused]] const auto& batch : loader) states.push_back(loader.StateDict().values);
  EXPECT_EQ(states[1], (nlohmann::json{{"epoch", 0}, {"batches", 2}, {"samples", 6}}));
  EXPECT_EQ(states[2], (nlohmann::json{{"epoch", 1}, {"batches", 0}, {"samples", 0}}));
  const std::vector<std::vector<Order>> rest = {
      {{3, 4, 5}, {6}}, {{6}}, {{100, 101, 102}, {103, 104, 105}, {106}}};
  for (size_t i = 0; i < states.size(); ++i) {
    DataLoader resumed(Counter(7), {.batch_size = 3, .num_workers = GetParam()});
    StateDict state;
    state.values = states[i];
    resumed.LoadStateDict(state);
    EXPECT_EQ(BatchesOf(resumed), rest[i]);
  }
  loader.SkipFirstBatches(9);  // only reading tells that there are fewer
  EXPECT_EQ(BatchesOf(loader), std::vector<Order>());
}

TEST(StreamsTest, HaveNoSizeAndNoOtherOrder) {
  DataLoader loader(Counter(7), {.batch_size = 3});
  EXPECT_EQ(MessageOf([&] { loader.size(); }), "[data_loader] a stream has no number of batches");
  EXPECT_EQ(MessageOf([&] { loader.num_samples(); }),
            "[data_loader] a stream has no number of samples");
  EXPECT_THROW(DataLoader(Counter(7), {.shuffle = true}), Error);
  EXPECT_THROW(DataLoader(Counter(7), {.group_by_length = true}), Error);
  EXPECT_THROW(loader.SkipFirstBatches(-1), Error);
}

TEST(StreamsTest, AStartWithoutAFunction) {
  struct Empty : IterableDataset<int64_t> {
    std::function<std::optional<int64_t>()> Start(int64_t) const override { return nullptr; }
  };
  DataLoader loader(Empty(), {.batch_size = 3});
  EXPECT_EQ(MessageOf([&] { loader.begin(); }),
            "[data_loader] the stream's Start returned no function");
}

}  // namespace
}  // namespace lathe
