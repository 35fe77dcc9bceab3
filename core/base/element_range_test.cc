#include "lathe/core/base/element_range.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Ranges = std::vector<ElementRange>;

TEST(ElementRange, StripesFollowEachOtherAndAreAlike) {
  for (const int64_t size : {0, 1, 31, 32, 33, 100, 1000, 12345}) {
    for (const int count : {1, 2, 3, 7}) {
      int64_t at = 48;
      for (int rank = 0; rank < count; ++rank) {
        const ElementRange part = StripeOfRank({48, 48 + size}, rank, count);
        EXPECT_EQ(part.begin, at);
        EXPECT_TRUE(part.size() == 0 || (part.begin - 48) % 32 == 0);
        EXPECT_NEAR(static_cast<double>(part.size()), static_cast<double>(size) / count, 32);
        at = part.end;
      }
      EXPECT_EQ(at, 48 + size);
    }
  }
}

TEST(ElementRange, WithinAndWithout) {
  const Ranges others = {{0, 10}, {20, 30}, {30, 35}, {50, 60}};
  EXPECT_EQ(Intersection({5, 55}, others), (Ranges{{5, 10}, {20, 30}, {30, 35}, {50, 55}}));
  EXPECT_EQ(Difference({5, 55}, others), (Ranges{{10, 20}, {35, 50}}));
  EXPECT_EQ(Difference({0, 100}, others), (Ranges{{10, 20}, {35, 50}, {60, 100}}));
  EXPECT_EQ(Difference({22, 24}, others), Ranges{});
  EXPECT_EQ(Intersection({11, 20}, others), Ranges{});
  EXPECT_EQ(Difference({11, 20}, {}), (Ranges{{11, 20}}));
  EXPECT_EQ(Difference({7, 7}, others), Ranges{});
}

}  // namespace
}  // namespace lathe
