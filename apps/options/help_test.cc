// Tests what --help and --help_transformers print.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "lathe/apps/options/options.h"
#include "lathe/apps/options/refused_values.h"

namespace lathe {
namespace {

size_t LongestLine(const std::string& text) {
  size_t longest = 0;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    longest = std::max(longest, end - begin);
  }
  return longest;
}

TEST(HelpTest, IsGroupedAndShowsDefaults) {
  const std::string help = *ParseOptions({"--help"}).help;
  for (const char* part :
       {"\nTraining:\n", "\nData:\n", "--learning_rate X", "(default: 5e-05)", "linear"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
}

// Standard output of a test is no terminal, so COLUMNS decides.
TEST(HelpTest, FitsTheWidth) {
  for (const char* flag : {"--help", "--help_transformers"}) {
    const auto lines_with = [&](const char* columns) {
      columns != nullptr ? setenv("COLUMNS", columns, 1) : unsetenv("COLUMNS");
      const size_t longest = LongestLine(*ParseOptions({flag}).help);
      unsetenv("COLUMNS");
      return longest;
    };
    EXPECT_LE(lines_with(nullptr), 80u) << flag;
    EXPECT_LE(lines_with("80"), 80u) << flag;
    EXPECT_GT(lines_with("200"), 90u) << flag;
    EXPECT_LE(lines_with("200"), 100u) << flag;
  }
}

TEST(HelpTest, ListsRefusedValues) {
  const std::string list = *ParseOptions({"--help_transformers"}).help;
  for (const char* part : {"  --optim\n      refused: adamw_apex_fused, ", "refused: dvclive\n"})
    EXPECT_NE(list.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace lathe
