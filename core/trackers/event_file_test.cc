#include "lathe/core/trackers/event_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace lathe {
namespace {

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    hex += digits;
  }
  return hex;
}

TEST(EventFile, NamesSortByTime) {
  EXPECT_EQ(EventFileName(1700000000, "host", 12, 3), "events.out.tfevents.1700000000.host.12.3");
  EXPECT_EQ(EventFileName(99, "host", 12, 0), "events.out.tfevents.0000000099.host.12.0");
}

// Another program computed these two records.
TEST(EventFile, RecordsAreThoseOfAnotherProgram) {
  EXPECT_EQ(Hex(EventRecord(VersionEvent(1.0))),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(Hex(EventRecord(SummaryEvent(2.0, 7, {ScalarValue("loss", 0.5)}))),
            "1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f7373150000003fc33fc24a");
}

// The decoder of Protocol Buffers takes a missing step for 0, but a missing value for none.
TEST(EventFile, WritesZeroesThatCount) {
  EXPECT_EQ(Hex(ScalarValue("a", 0)), "0a01611500000000");
  EXPECT_EQ(Hex(SummaryEvent(1.0, 0, {})), "09000000000000f03f2a00");
  // A step below 0 takes ten bytes.
  EXPECT_EQ(Hex(SummaryEvent(1.0, -1, {})), "09000000000000f03f10ffffffffffffffffff012a00");
}

}  // namespace
}  // namespace lathe
