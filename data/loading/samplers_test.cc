#include "lathe/data/loading/samplers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lathe/core/base/error.h"
#include "lathe/data/loading/sample_order.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

Order Sorted(Order order) {
  std::sort(order.begin(), order.end());
  return order;
}

Order First(int64_t n) { return SequentialSampler(n).order(0, 0); }

// Returns how often each of n samples comes, in many epochs.
std::vector<double> CountsOf(const Sampler& sampler, size_t n, int epochs) {
  std::vector<double> counts(n);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const int64_t i : sampler.order(5, epoch)) ++counts[static_cast<size_t>(i)];
  }
  return counts;
}

TEST(SamplersTest, Sequential) {
  EXPECT_EQ(First(4), (Order{0, 1, 2, 3}));
  EXPECT_EQ(SequentialSampler(4).num_samples, 4);
}

TEST(SamplersTest, RandomIsTheLoadersShuffle) {
  const Sampler sampler = RandomSampler(50);
  EXPECT_EQ(sampler.num_samples, 50);
  EXPECT_EQ(sampler.order(7, 3), SampleOrder(50, {}, {.shuffle = true, .seed = 7}, 3));
  EXPECT_NE(sampler.order(7, 3), sampler.order(7, 4));
  EXPECT_NE(sampler.order(7, 3), sampler.order(8, 3));
}

TEST(SamplersTest, RandomOfAnotherSize) {
  const Order few = RandomSampler(50, 20).order(1, 0);
  EXPECT_EQ(std::set<int64_t>(few.begin(), few.end()).size(), 20u);
  const Order many = RandomSampler(10, 25).order(1, 0);
  ASSERT_EQ(many.size(), 25u);
  EXPECT_EQ(Sorted({many.begin(), many.begin() + 10}), First(10));
  EXPECT_EQ(Sorted({many.begin() + 10, many.begin() + 20}), First(10));
  EXPECT_NE(Order(many.begin(), many.begin() + 10), Order(many.begin() + 10, many.begin() + 20));
  EXPECT_EQ(RandomSampler(0).order(1, 0), Order());
}

TEST(SamplersTest, WithReplacementAllAreAsLikely) {
  const Sampler sampler = RandomSampler(10, 1000, /*replacement=*/true);
  const std::vector<double> counts = CountsOf(sampler, 10, 100);
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 10000) * (count - 10000) / 10000;
  EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom: exceeded with probability 0.001
  EXPECT_GT(chi_square, 0.5);   // exceeded with probability 0.99998
}

TEST(SamplersTest, WeightsAreProportionsOfDraws) {
  const std::vector<double> weights = {1, 0, 3, 0.5, 0};
  const Sampler sampler = WeightedRandomSampler(weights, 900);
  const std::vector<double> counts = CountsOf(sampler, weights.size(), 100);
  double chi_square = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double expected = 90000 * weights[i] / 4.5;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << i;
    } else {
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 13.8);  // 2 degrees of freedom: exceeded with probability 0.001
}

// The probability that i is drawn first and j second is w_i / W * w_j / (W - w_i).
TEST(SamplersTest, WeightsWithoutReplacement) {
  const std::vector<double> weights = {1, 2, 0, 3};
  const Sampler sampler = WeightedRandomSampler(weights, 2, /*replacement=*/false);
  std::vector<std::vector<double>> counts(4, std::vector<double>(4));
  constexpr int kEpochs = 60000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Order order = sampler.order(5, epoch);
    ++counts[static_cast<size_t>(order[0])][static_cast<size_t>(order[1])];
  }
  double chi_square = 0;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const double expected = i == j ? 0 : kEpochs * weights[i] / 6 * weights[j] / (6 - weights[i]);
      if (expected == 0) {
        EXPECT_EQ(counts[i][j], 0);
      } else {
        chi_square += (counts[i][j] - expected) * (counts[i][j] - expected) / expected;
      }
    }
  }
  EXPECT_LT(chi_square, 20.5);  // 5 degrees of freedom: exceeded with probability 0.001
}

TEST(SamplersTest, BadWeights) {
  EXPECT_THROW(WeightedRandomSampler({1, -1}, 2), Error);
  EXPECT_THROW(WeightedRandomSampler({1, INFINITY}, 2), Error);
  EXPECT_THROW(WeightedRandomSampler({1, NAN}, 2), Error);
  EXPECT_THROW(WeightedRandomSampler({0, 0}, 2), Error);
  EXPECT_THROW(WeightedRandomSampler({}, 2), Error);
  EXPECT_THROW(WeightedRandomSampler({1, 0}, 2, /*replacement=*/false), Error);
  EXPECT_THROW(WeightedRandomSampler({1}, -1), Error);
  EXPECT_EQ(WeightedRandomSampler({1, 0}, 3).order(1, 1), (Order{0, 0, 0}));
}

TEST(SamplersTest, SubsetInRandomOrder) {
  Order odd;
  for (int64_t i = 1; i < 60; i += 2) odd.push_back(i);
  const Order order = SubsetRandomSampler(odd).order(3, 0);
  EXPECT_NE(order, odd);
  EXPECT_EQ(Sorted(order), odd);
}

TEST(SamplersTest, LengthGroupedIsTheLoadersOrder) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 300; ++i) lengths.push_back(1 + i * 7919 % 31);
  EXPECT_EQ(LengthGroupedSampler(lengths, 4).order(7, 2),
            SampleOrder(300, lengths, {.batch_size = 4, .group_by_length = true, .seed = 7}, 2));
}

}  // namespace
}  // namespace lathe
