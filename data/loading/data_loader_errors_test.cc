// What a loader says of data sets, collate functions and options that are wrong.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/loader_testing.h"
#include "lathe/data/loading/samplers.h"

namespace lathe {
namespace {

using Order = std::vector<int64_t>;

TEST(DataLoaderTest, ErrorsOfLengthsAndWeightsNameTheSample) {
  struct Bad : Numbers {
    Bad() : Numbers(4) {}
    double Weight(int64_t i) const override { return i == 3 ? -1 : 1; }
    int64_t Length(int64_t i) const override {
      if (i == 1) throw std::out_of_range("no such row");
      return 1;
    }
  };
  DataLoader loader(Bad(), {.batch_size = 2});
  EXPECT_EQ(MessageOf([&] { loader.begin(); }), "[data_loader] Length of sample 1: no such row");
  loader.SkipFirstBatches(1);
  EXPECT_EQ(MessageOf([&] { loader.begin(); }),
            "[data_loader] the weight of sample 3 must be from 0 to 1e12 but is -1");
}

TEST(DataLoaderTest, ACollateFunctionThatReturnsNothing) {
  const auto first = [](auto collate) {
    return MessageOf([&] {
      DataLoader loader(Numbers(5), {.batch_size = 2}, collate);
      loader.begin();
    });
  };
  const std::string nothing =
      "[collate] the collate function returned nothing; the batch has samples 0, 1";
  EXPECT_EQ(first([](std::vector<int64_t>) { return Tensor(); }), nothing);
  EXPECT_EQ(first([](std::vector<int64_t>) { return TensorBatch<2>(); }), nothing);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::shared_ptr<int>(); }), nothing);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::optional<int>(); }), nothing);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::vector<Tensor>(); }), nothing);
  EXPECT_EQ(first([](std::vector<int64_t>) { return nlohmann::json(); }), nothing);
  EXPECT_EQ(first([](std::vector<int64_t>) { return 0; }), "");  // a number is something

  const std::string undefined =
      "[collate] the collate function returned an undefined tensor; the batch has samples 0, 1";
  const Tensor some = Tensor::Zeros({2});
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::pair<Tensor, Tensor>(); }), undefined);
  EXPECT_EQ(first([=](std::vector<int64_t>) { return std::pair(some, Tensor()); }), undefined);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::tuple<int, Tensor>(); }), undefined);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::array<Tensor, 2>(); }), undefined);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::vector<Tensor>(2); }), undefined);
  EXPECT_EQ(first([](std::vector<int64_t>) { return std::vector<TensorBatch<1>>(1); }), undefined);
  EXPECT_EQ(first([](std::vector<int64_t>) {
              return std::map<std::string, Tensor>{{"inputs", Tensor()}};
            }),
            undefined);
  EXPECT_EQ(first([](std::vector<int64_t>) {
              return std::pair(1, std::tuple(std::vector<Tensor>(1), 2.0f));
            }),
            undefined);
  EXPECT_EQ(first([=](std::vector<int64_t>) {  // what may be missing is optional
              return std::tuple(some, std::optional<Tensor>(), std::string(), std::vector{some});
            }),
            "");
}

TEST(DataLoaderTest, SizesThatDisagree) {
  const MapDataset ragged(
      Numbers(20), [](int64_t i) { return std::pair(std::vector<float>(i == 13 ? 3 : 2), i); });
  DataLoader loader(ragged, {.batch_size = 10});
  auto it = loader.begin();
  EXPECT_EQ(MessageOf([&] { ++it; }),
            "[collate] tensor 0 of the batch's sample 3 has shape [3] but that of sample 0 has "
            "[2]; the batch has samples 10, 11, 12, 13, 14, 15, 16, 17 and 2 more");
}

TEST(DataLoaderTest, LimitsOfOptions) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  for (const int64_t size : {kLargest, kLargest - 5, int64_t{1} << 31, int64_t{0}, int64_t{-3}}) {
    const std::string error =
        "batch_size must be from 1 to 2147483647 but is " + std::to_string(size);
    EXPECT_EQ(MessageOf([&] { DataLoader(Rows(10), {.batch_size = size}); }),
              "[data_loader] " + error);
    EXPECT_EQ(MessageOf([&] { LengthGroupedSampler({1, 2}, size); }), "[sampler] " + error);
  }
  EXPECT_EQ(MessageOf([] { DataLoader(Numbers(kLargest), {}); }),
            "[data_loader] an epoch may have up to 1099511627776 samples but has "
            "9223372036854775807");
  DataLoader whole(Rows(10), {.batch_size = std::numeric_limits<int32_t>::max()});
  EXPECT_EQ(whole.size(), 1);
  EXPECT_EQ((*whole.begin()).indices.size(), 10u);
  whole.Shard(1, 4, false, nullptr);
  EXPECT_EQ(whole.size(), 1);
  int batches = 0;
  DataLoader ahead(Rows(10), {.batch_size = 3, .prefetch = std::numeric_limits<int>::max()});
  for ([[maybe_unused]] const auto& batch : ahead) ++batches;
  EXPECT_EQ(batches, 4);
}

TEST(DataLoaderTest, BadOptions) {
  EXPECT_THROW(DataLoader(Rows(3), {.batch_size = 0}), Error);
  EXPECT_THROW(DataLoader(Rows(3), {.num_workers = -1}), Error);
  EXPECT_THROW(DataLoader(Rows(3), {.batch_size = 4, .drop_last = true}), Error);
  EXPECT_THROW(DataLoader(Rows(3), {.class_weights = {1, 2}}), Error);
  EXPECT_THROW(DataLoader(Rows(3), {.shuffle = true, .sampler = SequentialSampler(3)}), Error);
  EXPECT_THROW(DataLoader(std::shared_ptr<const Numbers>(), {}), Error);
}

class Workers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Numbers, Workers, testing::Values(0, 1, 4));

TEST_P(Workers, AnErrorNamesTheSampleAndComesInItsPlace) {
  const MapDataset data(Numbers(40), [](int64_t i) {
    if (i == 9) throw InvalidArgument("[parse] bad number", "mend it");
    if (i == 30) throw std::runtime_error("late");
    return i;
  });
  DataLoader loader(data, {.batch_size = 4, .num_workers = GetParam()});
  auto it = loader.begin();
  ++it;
  EXPECT_EQ((*it)[0].ToVector<int64_t>(), (Order{4, 5, 6, 7}));
  try {
    ++it;
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "[data_loader] sample 9: bad number");
    EXPECT_EQ(e.hint(), "mend it");
  }
  EXPECT_TRUE(it == loader.end());
  ++it;
  EXPECT_TRUE(it == loader.end());
  // The next epoch begins anew. It meets the same error in another place.
  loader.SkipFirstBatches(3);
  auto next = loader.begin();
  for (int i = 0; i < 3; ++i) ++next;
  EXPECT_EQ((*next)[0].ToVector<int64_t>(), (Order{24, 25, 26, 27}));
  EXPECT_EQ(MessageOf([&] { ++next; }), "[data_loader] sample 30: late");
}

}  // namespace
}  // namespace lathe
