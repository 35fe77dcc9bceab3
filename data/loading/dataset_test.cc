#include "lathe/data/loading/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "lathe/data/loading/tensor_dataset.h"

namespace lathe {
namespace {

using Numbers = std::vector<int64_t>;

// Sample i is i * i, has length i + 1 and counts i times.
struct Squares : Dataset<int64_t> {
  explicit Squares(int64_t size) : n(size) {}
  int64_t Size() const override { return n; }
  int64_t Get(int64_t i) const override { return i * i; }
  int64_t Length(int64_t i) const override { return i + 1; }
  double Weight(int64_t i) const override { return static_cast<double>(i); }
  std::string Fingerprint() const override { return std::to_string(n); }
  int64_t n;
};

template <typename D>
Numbers AllOf(const D& dataset) {
  Numbers all;
  for (int64_t i = 0; i < dataset.Size(); ++i) all.push_back(dataset.Get(i));
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

TEST(SubsetTest, HasTheSamplesInTheirOrder) {
  const Subset subset(Squares(10), {7, 0, 7});
  EXPECT_EQ(AllOf(subset), (Numbers{49, 0, 49}));
  EXPECT_EQ(subset.Length(0), 8);
  EXPECT_EQ(subset.Weight(2), 7);
  EXPECT_NE(subset.Fingerprint(), Subset(Squares(10), {7, 0, 6}).Fingerprint());
  EXPECT_NE(subset.Fingerprint(), Subset(Squares(9), {7, 0, 7}).Fingerprint());
  EXPECT_EQ(MessageOf([] {
              Subset(Squares(10), {0, 10});
            }),
            "[subset] sample 10 does not exist; the data set has 10 samples");
  EXPECT_EQ(MessageOf([] { Subset(Squares(10), {-1}); }),
            "[subset] sample -1 does not exist; the data set has 10 samples");
  for (const int64_t i : {-1, 3}) {
    const std::string error =
        "[subset] sample " + std::to_string(i) + " does not exist; there are 3";
    EXPECT_EQ(MessageOf([&] { subset.Get(i); }), error);
    EXPECT_EQ(MessageOf([&] { subset.Length(i); }), error);
    EXPECT_EQ(MessageOf([&] { subset.Weight(i); }), error);
  }
}

TEST(ConcatDatasetTest, HasOneSetAfterAnother) {
  const ConcatDataset both(Squares(3), Squares(0), Subset(Squares(9), {8, 5}));
  EXPECT_EQ(AllOf(both), (Numbers{0, 1, 4, 64, 25}));
  EXPECT_EQ(both.Length(3), 9);
  EXPECT_EQ(both.Weight(4), 5);
  EXPECT_EQ(MessageOf([&] { both.Get(5); }),
            "[concat_dataset] sample 5 does not exist; there are 5");
}

TEST(MapDatasetTest, AppliesTheFunctionAndMayChangeTheType) {
  const MapDataset texts(Squares(3), [](int64_t x) { return std::to_string(x) + "!"; });
  static_assert(std::is_same_v<SampleOf<std::remove_cv_t<decltype(texts)>>, std::string>);
  EXPECT_EQ(texts.Get(2), "4!");
  EXPECT_EQ(texts.Length(2), 3);
  EXPECT_EQ(texts.Weight(2), 2);
  EXPECT_EQ(texts.Size(), 3);
}

TEST(DatasetTest, ASharedDatasetIsNotCopied) {
  const auto squares = std::make_shared<Squares>(4);
  const MapDataset negated(squares, [](int64_t x) { return -x; });
  squares->n = 2;
  EXPECT_EQ(negated.Size(), 2);
  EXPECT_EQ(MessageOf([] { Subset(std::shared_ptr<const Squares>(), {}); }),
            "[dataset] the data set is null");
}

// The sizes are those of torch.utils.data.random_split(range(n), shares) in PyTorch 2.
TEST(RandomSplitTest, SizesArePyTorchs) {
  EXPECT_EQ(SizesOfParts(10, {0.8, 0.2}), (Numbers{8, 2}));
  EXPECT_EQ(SizesOfParts(11, {0.5, 0.5}), (Numbers{6, 5}));
  EXPECT_EQ(SizesOfParts(10, {0.33, 0.33, 0.34}), (Numbers{4, 3, 3}));
  EXPECT_EQ(SizesOfParts(1, {0.1, 0.9}), (Numbers{1, 0}));
  EXPECT_EQ(SizesOfParts(7, {0.25, 0.25, 0.25, 0.25}), (Numbers{2, 2, 2, 1}));
  EXPECT_THROW(SizesOfParts(10, {0.5, 0.4}), Error);
  EXPECT_THROW(SizesOfParts(10, {1.5, -0.5}), Error);
}

TEST(RandomSplitTest, GivesEachSampleToOnePart) {
  const auto [train, eval] = RandomSplit(Squares(100), {80, 20});
  EXPECT_EQ(train.Size(), 80);
  EXPECT_EQ(eval.Size(), 20);
  Numbers all = train.indices();
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  all.insert(all.end(), eval.indices().begin(), eval.indices().end());
  std::sort(all.begin(), all.end());
  Numbers expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
  const auto [same, rest] = RandomSplit(Squares(100), {0.8, 0.2});
  EXPECT_EQ(same.indices(), train.indices());
  EXPECT_NE(RandomSplit(Squares(100), {0.8, 0.2}, /*seed=*/7)[0].indices(), train.indices());
  EXPECT_EQ(MessageOf([] {
              RandomSplit(Squares(100), {80, 30});
            }),
            "[random_split] the sizes have the sum 110 but the data set has 100 samples");
}

TEST(TensorDatasetTest, ASampleIsARowOfEachTensor) {
  const Tensor inputs = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor targets = Tensor::FromVector<int64_t>({7, 8, 9});
  const TensorDataset data(inputs, targets);
  EXPECT_EQ(data.Size(), 3);
  const auto [x, y] = data.Get(1);
  EXPECT_EQ(x.shape(), Shape{2});
  EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(y.shape(), Shape{});
  EXPECT_EQ(y.Item(), 8);
  EXPECT_EQ(MessageOf([&] { data.Get(3); }), "[tensor_dataset] row 3 does not exist; there are 3");
  EXPECT_EQ(MessageOf([&] { TensorDataset(inputs, Tensor::Zeros({4})); }),
            "[tensor_dataset] tensor 1 has shape [4] but tensor 0 has 3 rows");
  EXPECT_EQ(MessageOf([&] { TensorDataset(inputs, Tensor()); }),
            "[tensor_dataset] tensor 1 has no values");
  EXPECT_EQ(MessageOf([] { TensorDataset{Tensor::Zeros({})}; }),
            "[tensor_dataset] tensor 0 is a scalar and has no rows");
}

TEST(TensorDatasetTest, TheFingerprintKnowsEveryBit) {
  Tensor inputs = Tensor::Zeros({3, 2});
  const std::string before = TensorDataset(inputs).Fingerprint();
  EXPECT_NE(TensorDataset(Tensor::Zeros({2, 3})).Fingerprint(), before);
  inputs.data<float>()[5] = -0.0f;
  EXPECT_NE(TensorDataset(inputs).Fingerprint(), before);
}

}  // namespace
}  // namespace lathe
