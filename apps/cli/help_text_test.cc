#include "lathe/apps/cli/help_text.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "lathe/apps/cli/flags.h"

namespace lathe {
namespace {

// Sets COLUMNS, or unsets it, while it lives.
class Columns {
 public:
  explicit Columns(const char* value) {
    if (const char* before = std::getenv("COLUMNS")) before_ = before;
    value != nullptr ? setenv("COLUMNS", value, 1) : unsetenv("COLUMNS");
  }
  ~Columns() { before_ ? setenv("COLUMNS", before_->c_str(), 1) : unsetenv("COLUMNS"); }

 private:
  std::optional<std::string> before_;
};

// Returns the width of help on a terminal with so many columns.
size_t WidthOnTerminal(int columns) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int reader = -1, terminal = -1;
  if (openpty(&reader, &terminal, nullptr, nullptr, &size) != 0) {
    ADD_FAILURE() << "there is no terminal";
    return 0;
  }
  const size_t width = HelpWidth(terminal);
  close(reader);
  close(terminal);
  return width;
}

TEST(HelpText, HasTheWidthOfTheTerminal) {
  const Columns columns("70");
  EXPECT_EQ(WidthOnTerminal(90), 90u);
  EXPECT_EQ(WidthOnTerminal(60), 60u);
  EXPECT_EQ(WidthOnTerminal(200), kWidestHelp);
  EXPECT_EQ(WidthOnTerminal(10), 40u);
  EXPECT_EQ(WidthOnTerminal(0), 70u);  // it doesn't know
}

TEST(HelpText, HasTheWidthOfColumnsElsewhere) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto width = [&](const char* value) {
    const Columns columns(value);
    return HelpWidth(ends[1]);
  };
  EXPECT_EQ(width(nullptr), 80u);
  EXPECT_EQ(width(""), 80u);
  EXPECT_EQ(width("wide"), 80u);
  EXPECT_EQ(width("0"), 80u);
  EXPECT_EQ(width("95"), 95u);
  EXPECT_EQ(width("200"), kWidestHelp);
  EXPECT_EQ(width("-1"), kWidestHelp);
  EXPECT_EQ(width("1"), 40u);
  for (const int end : ends) close(end);
}

TEST(HelpText, WrapsWords) {
  EXPECT_EQ(WrapText("", 10), "");
  EXPECT_EQ(WrapText("one two three", 7), "one two\nthree");
  EXPECT_EQ(WrapText("one two three", 8, 2, 1), "one two\n  three");
  EXPECT_EQ(WrapText("one two three", 7, 2, 1), "one\n  two\n  three");
  EXPECT_EQ(WrapText("a longerthanaline b", 6), "a\nlongerthanaline\nb");
}

TEST(HelpText, WrapsProseAndNoExamples) {
  EXPECT_EQ(WrapProse("one two\nthree four\n\nUsage:\n  a long example here\nend\n", 13),
            "one two three\nfour\n\nUsage:\n  a long example here\nend\n");
}

TEST(HelpText, TablesOfFlagsFitTheWidth) {
  FlagTable flags("Does something that takes some words to tell.\n\nUsage:\n  program [options]\n");
  std::string name = "a", other;
  int64_t number = 1;
  flags.Add("a_name", &name, "a text that is long enough for two lines or more of any width here")
      .Choices({"a", "b"});
  flags.Add("a_name_that_is_too_long_for_its_column", &number, "a number").Min(0);
  for (const size_t width : {40, 59, 60, 80, 100}) {
    const std::string help = flags.Help(width);
    size_t longest = 0;
    for (size_t begin = 0, end; begin < help.size(); begin = end + 1) {
      end = std::min(help.find('\n', begin), help.size());
      longest = std::max(longest, end - begin);
    }
    EXPECT_LE(longest, std::max<size_t>(width, 44)) << help;  // a name takes 44
    EXPECT_GE(longest, width - 12) << help;
    EXPECT_NE(help.find("(default: 1)"), std::string::npos) << help;
  }
}

}  // namespace
}  // namespace lathe
