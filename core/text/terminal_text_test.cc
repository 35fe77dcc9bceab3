#include "lathe/core/text/terminal_text.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(TerminalTextTest, ShowsControlsAndWrongBytesAsDigits) {
  EXPECT_EQ(TerminalText("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(TerminalText("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(TerminalText(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(TerminalText("\xc2\x9b"
                         "31m"),
            "\\xc2\\x9b31m");  // C1
  EXPECT_EQ(TerminalText("na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80"),
            "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80");
  EXPECT_EQ(TerminalText("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(TerminalText("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a pair
}

}  // namespace
}  // namespace lathe
