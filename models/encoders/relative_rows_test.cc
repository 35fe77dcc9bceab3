#include "lathe/models/encoders/relative_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lathe {
namespace {

// Three tokens have distances from -2 to 2. The table serves batches whose length a GPU rounds up
// to 64, and never names a row that only longer sequences would need.
TEST(RelativeRows, GreaterDistancesHaveTheRowsOfTheGreatest) {
  RelativeRows rows(3, [](int64_t distance) { return distance + 2; });
  const std::vector<int32_t> table = rows.On({}).ToVector<int32_t>();
  ASSERT_EQ(table.size(), 2 * 64 - 1u);
  for (int distance = -63; distance < 64; ++distance) {
    EXPECT_EQ(table[static_cast<size_t>(distance + 63)], std::clamp(distance, -2, 2) + 2);
  }
}

TEST(RelativeRows, LengthsAreRoundedUpToPowersOfTwo) {
  const auto length = [](int64_t max_length) {
    RelativeRows rows(max_length, [](int64_t) { return 0; });
    return (rows.On({}).numel() + 1) / 2;
  };
  EXPECT_EQ(length(1), 64);
  EXPECT_EQ(length(64), 64);
  EXPECT_EQ(length(65), 128);
  EXPECT_EQ(length(512), 512);
  EXPECT_EQ(length(514), 1024);
}

TEST(RelativeRows, TheTableIsMadeOnce) {
  int calls = 0;
  RelativeRows rows(2, [&](int64_t) { return calls++; });
  const Tensor table = rows.On({});
  const int made = calls;
  EXPECT_EQ(rows.On({}).impl(), table.impl());
  EXPECT_EQ(calls, made);
}

}  // namespace
}  // namespace lathe
