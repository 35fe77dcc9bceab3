#include "lathe/core/base/error.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(ErrorTest, NamesOptionsAsFlagsOnlyInProgramsThatHaveFlags) {
  EXPECT_EQ("set " + OptionName("resume_anyway"), "set resume_anyway");
  NameOptionsAsFlags();
  EXPECT_EQ("set " + OptionName("resume_anyway"), "set --resume_anyway");
}

}  // namespace
}  // namespace lathe
