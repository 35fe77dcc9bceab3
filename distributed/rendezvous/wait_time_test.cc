#include "lathe/distributed/rendezvous/wait_time.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(WaitTime, IsShownInSeconds) {
  EXPECT_EQ(SecondsText(milliseconds(0)), "0 s");
  EXPECT_EQ(SecondsText(milliseconds(612)), "0.612 s");
  EXPECT_EQ(SecondsText(seconds(2)), "2 s");
  EXPECT_EQ(SecondsText(milliseconds(10500)), "10.5 s");
  EXPECT_EQ(SecondsText(milliseconds(123456)), "123 s");
  EXPECT_EQ(SecondsText(milliseconds(999600)), "1000 s");
  EXPECT_EQ(SecondsText(seconds(1000000)), "1000000 s");
}

TEST(WaitTime, ThatIsLeftIsNeverNegative) {
  EXPECT_EQ(TimeLeft(steady_clock::now() - seconds(1)), milliseconds(0));
  EXPECT_GT(TimeLeft(steady_clock::now() + seconds(100)), seconds(90));
}

}  // namespace
}  // namespace lathe
