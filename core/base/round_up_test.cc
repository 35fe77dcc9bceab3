#include "lathe/core/base/round_up.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(RoundUpTest, DividesAndRoundsUpwards) {
  EXPECT_EQ(DivideUp(0, 4), 0);
  EXPECT_EQ(DivideUp(1, 4), 1);
  EXPECT_EQ(DivideUp(4, 4), 1);
  EXPECT_EQ(DivideUp(5, 4), 2);
  EXPECT_EQ(RoundUp(0, 6), 0);
  EXPECT_EQ(RoundUp(1, 6), 6);
  EXPECT_EQ(RoundUp(6, 6), 6);
  EXPECT_EQ(RoundUp(7, 6), 12);
}

}  // namespace
}  // namespace lathe
