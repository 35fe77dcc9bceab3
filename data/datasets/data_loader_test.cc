#include "lathe/data/datasets/data_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/ops/losses.h"
#include "lathe/data/datasets/dataset_testing.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

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
