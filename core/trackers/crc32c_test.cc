#include "lathe/core/trackers/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lathe {
namespace {

// The examples of RFC 3720, B.4. The RFC prints a checksum's lowest byte first.
TEST(Crc32c, EqualsTheExamplesOfTheRfc) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
  std::string falling = rising;
  std::reverse(falling.begin(), falling.end());
  EXPECT_EQ(Crc32c(falling), 0x113FDB5Cu);
  const unsigned char read_command[48] = {
      0x01, 0xC0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
      0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,    0};
  EXPECT_EQ(Crc32c({reinterpret_cast<const char*>(read_command), sizeof read_command}),
            0xD9963A56u);
}

TEST(Crc32c, EqualsTheCheckValueOfTheCatalogue) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

// From the records in event_file_test.cc, whose checksums another program computed.
TEST(MaskedCrc32c, RotatesAndShifts) {
  const std::string length("\x18\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(MaskedCrc32c(length), 0x224B7FA3u);
  EXPECT_EQ(MaskedCrc32c(""), 0xA282EAD8u);
}

}  // namespace
}  // namespace lathe
