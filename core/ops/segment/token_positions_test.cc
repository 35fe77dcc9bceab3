#include "lathe/core/ops/segment/token_positions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr int32_t kPadding = 1;

std::vector<int32_t> PositionsOf(const std::vector<int32_t>& ids,
                                 const std::vector<int32_t>& positions,
                                 const std::vector<int32_t>& cu_seqlens) {
  const Device device = CheckedDevice();
  const auto on_device = [&](const std::vector<int32_t>& x) {
    return Tensor::FromVector(x).To(device);
  };
  return TokenPositions(on_device(ids), on_device(positions), on_device(cu_seqlens), kPadding)
      .ToVector<int32_t>();
}

class TokenPositionsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Padding at the start, in the middle, at the end, and alone. A sequence without tokens. A row
// beyond the last sequence, where nothing is padding.
TEST_F(TokenPositionsTest, LeavesOutPaddingTokens) {
  EXPECT_EQ(PositionsOf({1, 7, 1, 1, 8, 9, 1, 1, 5, 6, 1}, {0, 1, 2, 3, 4, 0, 1, 0, 0, 1, 3},
                        {0, 5, 7, 7, 8, 10}),
            (std::vector<int32_t>{1, 2, 1, 1, 3, 2, 1, 1, 2, 3, 5}));
}

TEST_F(TokenPositionsTest, KeepsGapsWithoutPadding) {
  EXPECT_EQ(PositionsOf({4, 5, 6}, {0, 3, 5}, {0, 3}), (std::vector<int32_t>{2, 5, 7}));
  EXPECT_TRUE(PositionsOf({}, {}, {0}).empty());
}

// Columns of a padded batch have gaps, which stay.
TEST_F(TokenPositionsTest, CountsFromColumns) {
  EXPECT_EQ(PositionsOf({4, 1, 6, 7}, {2, 3, 5, 6}, {0, 4}), (std::vector<int32_t>{4, 1, 6, 7}));
}

// More tokens than a warp has threads, and more sequences than a grid has warps.
TEST_F(TokenPositionsTest, LongAndManySequences) {
  constexpr int kSequences = 40000;
  std::vector<int32_t> ids, positions, expected, cu = {0};
  uint32_t random = 1;
  for (int b = 0; b < kSequences; ++b) {
    const int length = b % 10000 == 0 ? 131 : b % 3;
    int32_t next = kPadding + 1;
    for (int i = 0; i < length; ++i) {
      random = random * 1664525 + 1013904223;
      ids.push_back(random >> 30 == 0 ? kPadding : 9);
      positions.push_back(i);
      expected.push_back(ids.back() == kPadding ? kPadding : next++);
    }
    cu.push_back(static_cast<int32_t>(ids.size()));
  }
  EXPECT_EQ(PositionsOf(ids, positions, cu), expected);
}

TEST(TokenPositions, Errors) {
  const auto error = [](const Tensor& ids, const Tensor& positions, const Tensor& cu_seqlens) {
    try {
      TokenPositions(ids, positions, cu_seqlens, kPadding);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  const Tensor four = Tensor::FromVector<int32_t>({1, 2, 3, 4});
  const Tensor ends = Tensor::FromVector<int32_t>({0, 4});
  EXPECT_EQ(error(four, four, ends), "");
  EXPECT_EQ(error(Tensor::Zeros({4}), four, ends),
            "[token_positions] ids must be int32 of shape [T] but is float32 of shape [4]");
  EXPECT_EQ(error(four, four.Slice(0, 3), ends),
            "[token_positions] ids of shape [4] don't fit positions of shape [3]");
  EXPECT_EQ(
      error(four, four, Tensor::FromVector<int32_t>({0, 5})),
      "[token_positions] cu_seqlens must run from 0 to at most 4, for ids of shape [4], and not "
      "decrease");
}

}  // namespace
}  // namespace lathe
