// The orders of samples, and batches of some of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/data/datasets/dataset_testing.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

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

}  // namespace
}  // namespace lathe
