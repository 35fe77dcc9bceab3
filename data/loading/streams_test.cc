// Loaders of IterableDatasets.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
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

// The same numbers, of which those below 3 have no weight, and others the weight n + 0.5. Throws or
// gives a bad weight for `bad`.
struct Weighted : Counter {
  using Counter::Counter;
  double Weight(const int64_t& sample) const override {
    if (sample == bad_weight) return -1;
    if (sample == throws) throw InvalidArgument("no such column");
    return sample < 3 ? 0 : static_cast<double>(sample) + 0.5;
  }
  int64_t bad_weight = -1, throws = -1;
};

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

Order Flat(const std::vector<Order>& batches) {
  Order all;
  for (const Order& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

TEST_P(Streams, AreShuffledByABuffer) {
  const auto make = [](int64_t buffer, uint64_t seed = 42) {
    return DataLoader(
        Counter(100),
        {.batch_size = 7, .shuffle_buffer = buffer, .seed = seed, .num_workers = GetParam()});
  };
  for (const int64_t buffer : {0, 1, 2, 10, 100, 1000}) {
    auto loader = make(buffer);
    const Order order = Flat(BatchesOf(loader));
    ASSERT_EQ(order.size(), 100u);
    // A sample can't come before it has entered the buffer.
    for (size_t i = 0; i < order.size(); ++i)
      EXPECT_LT(order[i], static_cast<int64_t>(i) + std::max<int64_t>(buffer, 1));
    Order sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(sorted[i], static_cast<int64_t>(i));
    EXPECT_EQ(order == sorted, buffer <= 1);
    if (buffer < 10) continue;
    Order next = Flat(BatchesOf(loader));  // of another epoch
    for (int64_t& number : next) number -= 100;
    EXPECT_NE(next, order);
    auto same = make(buffer), other = make(buffer, 43);
    EXPECT_EQ(Flat(BatchesOf(same)), order);
    EXPECT_NE(Flat(BatchesOf(other)), order);
  }
}

TEST_P(Streams, AShuffledBatchKnowsItsSamples) {
  DataLoader loader(Counter(20), {.batch_size = 6, .shuffle_buffer = 5, .num_workers = GetParam()});
  for (const auto& batch : loader) EXPECT_EQ(batch.indices, batch[0].ToVector<int64_t>());
}

TEST_P(Streams, GoOnInTheirShuffledOrder) {
  const auto make = [] {
    return DataLoader(Counter(23),
                      {.batch_size = 4, .shuffle_buffer = 9, .num_workers = GetParam()});
  };
  auto loader = make();
  std::vector<nlohmann::json> states;
  std::vector<Order> whole;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : loader) {
      whole.push_back(batch.indices);
      states.push_back(loader.StateDict().values);
    }
  }
  ASSERT_EQ(whole.size(), 12u);
  for (size_t i = 0; i < states.size(); ++i) {
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

// A buffer that holds the whole stream gives each order as often as any other.
TEST(StreamsTest, AllOrdersAreEquallyLikely) {
  constexpr int kEpochs = 1200, kOrders = 24;
  DataLoader loader(Counter(4), {.batch_size = 4, .shuffle_buffer = 4, .prefetch = 0});
  std::map<Order, int> times;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++times[loader.begin()->indices];
  ASSERT_EQ(times.size(), kOrders);
  double chi_square = 0;
  for (const auto& [order, count] : times) {
    const double expected = static_cast<double>(kEpochs) / kOrders;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 49.7);  // exceeded with probability 0.001 for 23 degrees of freedom
  EXPECT_GT(chi_square, 7.5);   // as good as no difference would be no chance, either
}

TEST_P(Streams, RanksShareTheShuffledOrderAndTheWeights) {
  std::vector<Order> alone;
  std::vector<double> weights;
  const DataLoaderOptions options{.batch_size = 4, .shuffle_buffer = 5, .num_workers = GetParam()};
  DataLoader single(Weighted(10), options);
  for (const auto& batch : single) {
    alone.push_back(batch.indices);
    double sum = 0;
    for (const int64_t n : batch.indices) sum += Weighted(10).Weight(n);
    EXPECT_EQ(batch.share.weight, sum);
    EXPECT_EQ(batch.share.global_weight, sum);
    weights.push_back(sum);
  }
  for (const int world_size : {2, 3}) {
    std::vector<Order> seen(alone.size());
    std::vector<double> sums(alone.size());
    for (int rank = 0; rank < world_size; ++rank) {
      DataLoader loader(Weighted(10), options);
      loader.Shard(rank, world_size, true, nullptr);
      size_t b = 0;
      for (const auto& batch : loader) {
        seen[b].resize(alone[b].size(), -1);
        double own = 0;
        for (size_t i = 0; !batch.share.stand_in && i < batch.indices.size(); ++i) {
          seen[b][static_cast<size_t>(batch.sample_ids[i])] = batch.indices[i];
          EXPECT_EQ(batch[0].data<int64_t>()[i], batch.indices[i]);
          own += Weighted(10).Weight(batch.indices[i]);
        }
        EXPECT_EQ(batch.share.weight, own);
        EXPECT_EQ(batch.share.global_weight, weights[b]);
        sums[b++] += own;
      }
    }
    EXPECT_EQ(seen, alone);
    EXPECT_EQ(sums, weights);
  }
}

TEST_P(Streams, ErrorsOfWeightsNameTheSample) {
  Weighted bad(9), thrower(9);
  bad.bad_weight = 4;
  thrower.throws = 2;
  DataLoader loader(bad, {.batch_size = 3, .num_workers = GetParam()});
  auto it = loader.begin();
  EXPECT_EQ(MessageOf([&] { ++it; }),
            "[data_loader] the weight of sample 4 of the stream must be from 0 to 1e12 but is -1");
  DataLoader other(thrower, {.batch_size = 3, .num_workers = GetParam()});
  EXPECT_EQ(MessageOf([&] { other.begin(); }),
            "[data_loader] Weight of sample 2 of the stream: no such column");
}

TEST_P(Streams, AnErrorInTheBuffer) {
  DataLoader loader(Counter(9, /*bad=*/4),
                    {.batch_size = 1, .shuffle_buffer = 3, .num_workers = GetParam()});
  int64_t batches = 0;
  EXPECT_EQ(MessageOf([&] {
              for ([[maybe_unused]] const auto& batch : loader) ++batches;
            }),
            "[data_loader] sample 4 of the stream: line is torn");
  EXPECT_EQ(batches, 2);  // the buffer had samples 0 to 2, then 3, and the third draw needs 4
}

TEST(StreamsTest, HaveNoSizeAndNoOtherOrder) {
  DataLoader loader(Counter(7), {.batch_size = 3});
  EXPECT_EQ(MessageOf([&] { loader.size(); }), "[data_loader] a stream has no number of batches");
  EXPECT_EQ(MessageOf([&] { loader.num_samples(); }),
            "[data_loader] a stream has no number of samples");
  EXPECT_THROW(DataLoader(Counter(7), {.shuffle = true}), Error);
  EXPECT_THROW(DataLoader(Counter(7), {.group_by_length = true}), Error);
  EXPECT_THROW(loader.SkipFirstBatches(-1), Error);
  EXPECT_THROW(DataLoader(Counter(7), {.shuffle_buffer = -1}), Error);
  struct Numbers : Dataset<int64_t> {
    int64_t Size() const override { return 7; }
    int64_t Get(int64_t i) const override { return i; }
  };
  EXPECT_EQ(MessageOf([] { DataLoader(Numbers(), {.shuffle_buffer = 3}); }),
            "[data_loader] shuffle_buffer is for streams; shuffle orders a data set of known size");
}

TEST(StreamsTest, AStartWithoutAFunction) {
  struct Empty : IterableDataset<int64_t> {
    std::function<std::optional<int64_t>()> Start(int64_t) const override { return nullptr; }
  };
  DataLoader loader(Empty(), {.batch_size = 3});
  EXPECT_EQ(MessageOf([&] { loader.begin(); }),
            "[data_loader] the stream's Start returned no function");
}

TEST_P(Streams, AnErrorOfStartSaysSo) {
  struct Closed : IterableDataset<int64_t> {
    std::function<std::optional<int64_t>()> Start(int64_t) const override {
      throw std::runtime_error("no such file");
    }
  };
  DataLoader loader(Closed(), {.batch_size = 3, .num_workers = GetParam()});
  loader.SetEpoch(2);
  EXPECT_EQ(MessageOf([&] { loader.begin(); }),
            "[data_loader] the stream's Start of epoch 2: no such file");
}

}  // namespace
}  // namespace lathe
