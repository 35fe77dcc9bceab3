#include "lathe/data/datasets/data_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/ops/losses.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

// Sample i has lengths[i] tokens with id i, and class i % 2.
TokenizedDataset DatasetOf(const std::vector<int64_t>& lengths) {
  TokenizedDataset data;
  data.has_labels = true;
  data.num_labels = 2;
  for (size_t i = 0; i < lengths.size(); ++i) {
    data.input_ids.insert(data.input_ids.end(), lengths[i], static_cast<int32_t>(i));
    data.offsets.push_back(data.offsets.back() + lengths[i]);
    data.classes.push_back(static_cast<int64_t>(i) % 2);
  }
  data.token_type_ids.resize(data.input_ids.size(), 0);
  return data;
}

TokenizedDataset DatasetOfSize(int64_t n) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < n; ++i) lengths.push_back(1 + i * 7919 % 31);
  return DatasetOf(lengths);
}

Order Identity(int64_t n) {
  Order order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Order Sorted(Order order) {
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SampleOrderTest, IsAPermutationGivenBySeedAndEpoch) {
  const TokenizedDataset data = DatasetOfSize(1000);
  EXPECT_EQ(SampleOrder(data, {}, 3), Identity(1000));
  const Order order = SampleOrder(data, {.shuffle = true, .seed = 7}, 3);
  EXPECT_NE(order, Identity(1000));
  EXPECT_EQ(Sorted(order), Identity(1000));
  EXPECT_EQ(order, SampleOrder(data, {.batch_size = 99, .shuffle = true, .seed = 7}, 3));
  EXPECT_NE(order, SampleOrder(data, {.shuffle = true, .seed = 7}, 4));
  EXPECT_NE(order, SampleOrder(data, {.shuffle = true, .seed = 8}, 3));
  EXPECT_NE(order, SampleOrder(data, {.shuffle = true, .seed = 7 + (uint64_t{1} << 32)}, 3));
}

TEST(SampleOrderTest, StaysTheSameAcrossVersions) {
  // A newer build that resumes a run must see the same order. The expected one was made by an
  // independent Philox4x32-10 in Python.
  EXPECT_EQ(SampleOrder(DatasetOfSize(10), {.shuffle = true, .seed = 42}, 0),
            (Order{7, 3, 1, 4, 6, 8, 5, 9, 0, 2}));
}

TEST(SampleOrderTest, EveryPermutationIsAsLikely) {
  const TokenizedDataset data = DatasetOfSize(4);
  std::map<Order, int> counts;
  constexpr int kEpochs = 24000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    ++counts[SampleOrder(data, {.shuffle = true}, epoch)];
  }
  ASSERT_EQ(counts.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 1000) * (count - 1000) / 1000.0;
  EXPECT_LT(chi_square, 49.7);  // 23 degrees of freedom: exceeded with probability 0.001
}

TEST(SampleOrderTest, LengthGroupedAsTrainer) {
  constexpr int64_t kSize = 1003, kBatch = 4;
  constexpr int64_t kMega = 50 * kBatch;  // min(1003 / 16, 50) batches
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < kSize; ++i) lengths.push_back(1 + i * 7919 % 31);
  lengths[500] = 99;
  const TokenizedDataset data = DatasetOf(lengths);
  const DataLoaderOptions options{.batch_size = kBatch, .group_by_length = true};
  const Order order = SampleOrder(data, options, 0);
  EXPECT_EQ(Sorted(order), Identity(kSize));
  EXPECT_EQ(order[0], 500);
  EXPECT_NE(order, SampleOrder(data, options, 1));

  // Each mega-batch holds the samples that the plain shuffle has in these places, except for the
  // swapped pair. Its lengths never rise after its first place.
  const Order shuffled = SampleOrder(data, {.batch_size = kBatch, .shuffle = true}, 0);
  for (int64_t begin = 0; begin < kSize; begin += kMega) {
    const int64_t end = std::min(begin + kMega, kSize);
    for (int64_t i = begin + 2; i < end; ++i) {
      EXPECT_GE(data.length(order[i - 1]), data.length(order[i])) << i;
    }
    const std::set<int64_t> here(order.begin() + begin, order.begin() + end);
    int64_t strangers = 0;
    for (int64_t i = begin; i < end; ++i) strangers += here.count(shuffled[i]) == 0;
    EXPECT_LE(strangers, 1);
  }
}

TEST(SampleOrderTest, AFewSamplesAreGroupedBatchByBatch) {
  // 7 / (4 * 3) is 0, so a mega-batch is one batch.
  const TokenizedDataset data = DatasetOf({1, 2, 3, 4, 5, 6, 7});
  const Order order = SampleOrder(data, {.batch_size = 3, .group_by_length = true}, 0);
  EXPECT_EQ(order[0], 6);
  EXPECT_EQ(Sorted(order), Identity(7));
  EXPECT_TRUE(SampleOrder(DatasetOf({}), {.group_by_length = true}, 0).empty());
}

TEST(SampleOrderTest, EvenTokens) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 872; ++i) lengths.push_back(2 + i * i % 61);
  const TokenizedDataset data = DatasetOf(lengths);
  constexpr int64_t kBatch = 64;
  const DataLoaderOptions options{.batch_size = kBatch, .even_tokens = true};
  const Order order = SampleOrder(data, options, 0);
  EXPECT_EQ(Sorted(order), Identity(872));
  EXPECT_EQ(order, SampleOrder(data, options, 1));
  // The mean number of tokens of a sample. The last batch, which is shorter, has it as well.
  const double mean = static_cast<double>(data.input_ids.size()) / 872;
  for (int64_t begin = 0; begin < 872; begin += kBatch) {
    const int64_t end = std::min<int64_t>(begin + kBatch, 872);
    int64_t tokens = 0;
    for (int64_t i = begin; i < end; ++i) tokens += data.length(order[i]);
    EXPECT_NEAR(static_cast<double>(tokens), mean * static_cast<double>(end - begin), 16);
  }
  EXPECT_EQ(SampleOrder(DatasetOf({3, 9}), {.even_tokens = true}, 0), Identity(2));
  EXPECT_TRUE(SampleOrder(DatasetOf({}), options, 0).empty());
}

TEST(CollateTest, TakesTheSamplesAsked) {
  Batch batch = Collate(DatasetOf({2, 1, 3}), {2, 0});
  EXPECT_EQ(batch.input_ids.ToVector<int32_t>(), (std::vector<int32_t>{2, 2, 2, 0, 0}));
  EXPECT_EQ(batch.cu_seqlens.ToVector<int32_t>(), (std::vector<int32_t>{0, 3, 5}));
  EXPECT_EQ(batch.labels.ToVector<int64_t>(), (Order{0, 0}));
  EXPECT_EQ(batch.indices, (Order{2, 0}));
  EXPECT_THROW(Collate(DatasetOf({1}), {1}), Error);
  EXPECT_THROW(Collate(DatasetOf({1}), {-1}), Error);
  EXPECT_THROW(Collate(DatasetOf({1}), {}), Error);
}

TEST(CollateTest, LabelsHaveTheShapeOfTheirKind) {
  TokenizedDataset data = DatasetOf({1, 1});
  data.kind = LabelKind::kRegression;
  data.scores = {0.5f, 2.5f};
  data.num_labels = 1;
  EXPECT_EQ(Collate(data, {1}).labels.ToVector<float>(), std::vector<float>{2.5f});
  data.kind = LabelKind::kMultiLabel;
  data.scores = {1, 0, 0, 0, 1, 1};
  data.num_labels = 3;
  const Tensor labels = Collate(data, {1, 0}).labels;
  EXPECT_EQ(labels.shape(), (Shape{2, 3}));
  EXPECT_EQ(labels.ToVector<float>(), (std::vector<float>{0, 1, 1, 1, 0, 0}));
  data.has_labels = false;
  EXPECT_FALSE(Collate(data, {0}).labels.defined());
}

class DataLoaderTest : public testing::TestWithParam<int> {};  // prefetch
INSTANTIATE_TEST_SUITE_P(Prefetch, DataLoaderTest, testing::Values(0, 1, 2, 100));

TEST_P(DataLoaderTest, VisitsEverySampleOnceInTheOrder) {
  DataLoader loader(DatasetOfSize(50),
                    {.batch_size = 8, .shuffle = true, .seed = 1, .prefetch = GetParam()});
  EXPECT_EQ(loader.size(), 7);
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    Order seen;
    for (const Batch& batch : loader) {
      EXPECT_EQ(batch.step, step++);
      seen.insert(seen.end(), batch.indices.begin(), batch.indices.end());
    }
    EXPECT_EQ(seen, SampleOrder(loader.dataset(), loader.options(), epoch));
  }
  EXPECT_EQ(loader.epoch(), 2);
  loader.SetEpoch(0);
  const auto first = loader.begin();
  EXPECT_EQ(first->step, 0);
}

TEST_P(DataLoaderTest, DropLast) {
  DataLoader loader(DatasetOfSize(50),
                    {.batch_size = 8, .drop_last = true, .prefetch = GetParam()});
  EXPECT_EQ(loader.size(), 6);
  int64_t count = 0;
  for (const Batch& batch : loader) {
    EXPECT_EQ(batch.size(), 8);
    ++count;
  }
  EXPECT_EQ(count, 6);
}

TEST_P(DataLoaderTest, AnErrorReachesTheCallerInItsPlace) {
  // Pack refuses sample 5, which has no tokens. Two batches of two come before it.
  DataLoader loader(DatasetOf({1, 1, 1, 1, 1, 0, 1}), {.batch_size = 2, .prefetch = GetParam()});
  auto it = loader.begin();
  ++it;
  EXPECT_EQ(it->indices, (Order{2, 3}));
  EXPECT_THROW(++it, Error);
  EXPECT_TRUE(it == loader.end());
  ++it;
  EXPECT_TRUE(it == loader.end());
}

TEST_P(DataLoaderTest, AnIteratorMayBeDroppedEarlyAndOutliveTheLoader) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::optional<TextLoader> loader(std::in_place, DatasetOfSize(200),
                                     DataLoaderOptions{.batch_size = 2, .prefetch = GetParam()});
    { auto unused = loader->begin(); }
    auto it = loader->begin();
    auto other = loader->begin();  // its own pass over the next epoch
    loader.reset();
    ++it;
    EXPECT_EQ(it->indices, (Order{2, 3}));
    EXPECT_EQ(other->indices, (Order{0, 1}));
  }
}

TEST_P(DataLoaderTest, AnEmptyDatasetHasNoBatches) {
  DataLoader loader(TokenizedDataset(), {.prefetch = GetParam()});
  EXPECT_EQ(loader.size(), 0);
  EXPECT_TRUE(loader.begin() == loader.end());
}

TEST(DataLoaderOptionsTest, BadOptions) {
  EXPECT_THROW(DataLoader(DatasetOfSize(3), {.batch_size = 0}), Error);
  EXPECT_THROW(DataLoader(DatasetOfSize(3), {.prefetch = -1}), Error);
  EXPECT_THROW(DataLoader(DatasetOfSize(3), {.batch_size = 4, .drop_last = true}), Error);
  EXPECT_THROW(DataLoader(DatasetOfSize(3), {.shuffle = true, .even_tokens = true}), Error);
  EXPECT_THROW(DataLoader(DatasetOfSize(3), {.group_by_length = true, .even_tokens = true}), Error);
  EXPECT_THROW(DataLoader(std::shared_ptr<const TokenizedDataset>(), {}), Error);
}

TEST(ShardTest, EverySampleComesOnceWhateverTheNumberOfProcesses) {
  for (const int world_size : {1, 2, 3, 4, 5}) {
    for (int64_t n = 1; n <= 50; ++n) {
      for (const bool drop_last : {false, true}) {
        const int64_t batch_size = 1 + n % 7;
        if (drop_last && n < batch_size) continue;  // the loader refuses this
        const TokenizedDataset data = DatasetOfSize(n);
        std::vector<TextLoader> loaders;
        for (int rank = 0; rank < world_size; ++rank) {
          loaders.emplace_back(data, DataLoaderOptions{.batch_size = batch_size,
                                                       .shuffle = true,
                                                       .drop_last = drop_last,
                                                       .prefetch = 0});
          loaders.back().Shard(rank, world_size, true, nullptr);
        }
        const Order order = SampleOrder(data, loaders[0].options(), 0);
        std::vector<TextLoader::Iterator> batches;
        for (TextLoader& loader : loaders) batches.push_back(loader.begin());
        for (int64_t b = 0; b < loaders[0].size(); ++b) {
          const int64_t size = std::min(batch_size, n - b * batch_size);
          std::map<int32_t, int64_t> placed;
          double weight = 0;
          for (TextLoader::Iterator& batch : batches) {
            const Batch::Share& share = *batch->share;
            EXPECT_EQ(share.global_size, size);
            EXPECT_EQ(share.global_weight, static_cast<double>(size));
            EXPECT_EQ(batch->step, b);
            weight += share.weight;
            EXPECT_EQ(share.stand_in, share.weight == 0);
            for (int64_t i = 0; !share.stand_in && i < batch->size(); ++i)
              EXPECT_TRUE(
                  placed.emplace(batch->sample_ids.data<int32_t>()[i], batch->indices[i]).second);
            ++batch;
          }
          EXPECT_EQ(weight, static_cast<double>(size));
          ASSERT_EQ(std::ssize(placed), size);
          for (const auto& [place, index] : placed) EXPECT_EQ(index, order[b * batch_size + place]);
        }
        for (const TextLoader::Iterator& batch : batches) EXPECT_TRUE(batch == loaders[0].end());
      }
    }
  }
}

TEST(ShardTest, SharesHaveNearlyTheSameNumberOfTokens) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 64; ++i) lengths.push_back(1 + i * 7919 % 61);
  for (const int parts : {1, 2, 3, 7}) {
    const std::vector<int> share = SplitByTokens(lengths, parts);
    std::vector<int64_t> tokens(static_cast<size_t>(parts));
    for (size_t i = 0; i < lengths.size(); ++i) tokens[share[i]] += lengths[i];
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
    EXPECT_LE(*high - *low, 6) << parts;
  }
  EXPECT_EQ(SplitByTokens({5, 5}, 4), (std::vector<int>{0, 1}));
  EXPECT_TRUE(SplitByTokens({}, 3).empty());
}

TEST(ShardTest, IgnoredLabelsHaveNoWeight) {
  TokenizedDataset data = DatasetOfSize(6);
  data.classes = {kIgnoreIndex, 1, 0, kIgnoreIndex, 1, 1};
  DataLoader loader(data, {.batch_size = 4});
  std::vector<double> weights;
  for (const Batch& batch : loader) weights.push_back(batch.share->weight);
  EXPECT_EQ(weights, (std::vector<double>{2, 2}));
}

TEST(DataLoaderTest, GoesOnFromItsState) {
  const auto make = [] {
    return DataLoader(DatasetOfSize(10), {.batch_size = 4, .shuffle = true, .seed = 7});
  };
  std::vector<Order> whole;
  std::vector<nlohmann::json> states;  // after each batch
  TextLoader loader = make();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Batch& batch : loader) {
      whole.push_back(batch.indices);
      states.push_back(loader.StateDict().values);
    }
    EXPECT_EQ(states.back(), loader.StateDict().values);
  }
  ASSERT_EQ(whole.size(), 6u);
  EXPECT_EQ(states[1], (nlohmann::json{{"epoch", 0}, {"batches", 2}, {"samples", 8}}));
  EXPECT_EQ(states[2], (nlohmann::json{{"epoch", 1}, {"batches", 0}, {"samples", 0}}));
  for (size_t i = 0; i < whole.size(); ++i) {
    TextLoader resumed = make();
    StateDict state;
    state.values = states[i];
    resumed.LoadStateDict(state);
    EXPECT_EQ(resumed.StateDict().values, states[i]);
    std::vector<Order> rest(whole.begin(), whole.begin() + static_cast<int64_t>(i) + 1);
    int64_t step = static_cast<int64_t>(i) + 1;
    while (resumed.epoch() < 2) {
      for (const Batch& batch : resumed) {
        EXPECT_EQ(batch.step, step++);
        rest.push_back(batch.indices);
      }
    }
    EXPECT_EQ(rest, whole) << i;
  }
  // A loader with other batches begins at the same sample, if one of its batches begins there.
  DataLoader halves(DatasetOfSize(10), {.batch_size = 2});
  StateDict state;
  state.values = states[0];
  halves.LoadStateDict(state);
  EXPECT_EQ((*halves.begin()).indices, (Order{4, 5}));
  DataLoader threes(DatasetOfSize(10), {.batch_size = 3});
  EXPECT_THROW(threes.LoadStateDict(state), Error);
}

// A share's weight is what divides its mean loss: the sum of its samples' weights.
TEST(DataLoaderTest, SharesWeighTheirSamplesAndClasses) {
  TokenizedDataset data = DatasetOfSize(10);
  data.classes[3] = kIgnoreIndex;
  for (int i = 0; i < 10; ++i) data.sample_weights.push_back(0.5f * static_cast<float>(i));
  const auto shared = std::make_shared<const TokenizedDataset>(data);
  double total = 0;
  for (const int rank : {0, 1, 2}) {
    DataLoader loader(shared, {.batch_size = 10, .class_weights = {2, 0.25f}});
    loader.Shard(rank, 3, /*split_batches=*/true, nullptr);
    for (const Batch& batch : loader) {
      double weight = 0;
      const std::vector<float> weights = batch.sample_weights.ToVector<float>();
      for (size_t i = 0; i < batch.indices.size(); ++i) {
        const int64_t sample = batch.indices[i];
        EXPECT_EQ(weights[i], 0.5f * static_cast<float>(sample));
        if (sample != 3) weight += 0.5 * static_cast<double>(sample) * (sample % 2 == 0 ? 2 : 0.25);
      }
      EXPECT_EQ(batch.share->weight, weight);
      EXPECT_EQ(batch.share->global_weight, 20 + 0.25 * 11);  // without sample 3
      total += weight;
    }
  }
  EXPECT_EQ(total, 20 + 0.25 * 11);
  EXPECT_FALSE(Collate(DatasetOfSize(2), {0}).sample_weights.defined());
}

TEST(DataLoaderTest, GivesTheEncodedRowsOfItsSamples) {
  const auto data = std::make_shared<const TokenizedDataset>(DatasetOfSize(10));
  Tensor rows = Tensor::Empty({10, 3}, DType::kF32);
  for (int64_t i = 0; i < 30; ++i) rows.data<float>()[i] = static_cast<float>(i);
  for (const int rank : {0, 1}) {
    DataLoader loader(data, {.batch_size = 4, .shuffle = true});
    loader.Shard(rank, 2, /*split_batches=*/false, nullptr);
    for (const Batch& batch : loader) EXPECT_FALSE(batch.encoded.defined());
    loader.SetEncoded(rows);
    for (const Batch& batch : loader) {
      ASSERT_EQ(batch.encoded.shape(), (Shape{batch.size(), 3}));
      const std::vector<float> encoded = batch.encoded.ToVector<float>();
      for (size_t i = 0; i < encoded.size(); ++i)
        EXPECT_EQ(encoded[i],
                  static_cast<float>(batch.indices[i / 3] * 3) + static_cast<float>(i % 3));
    }
  }
  DataLoader loader(data, {.batch_size = 4});
  EXPECT_THROW(loader.SetEncoded(Tensor::Zeros({9, 3}, DType::kF32)), Error);
}

TEST(DataLoaderTest, RefusesWeightsThatDoNotFit) {
  TokenizedDataset data = DatasetOfSize(4);
  EXPECT_THROW(DataLoader(data, {.batch_size = 2, .class_weights = {1}}), Error);
  data.sample_weights = {1, 2, 3};
  EXPECT_THROW(DataLoader(data, {.batch_size = 2}), Error);
}

}  // namespace
}  // namespace lathe
