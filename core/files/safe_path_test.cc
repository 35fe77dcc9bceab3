#include "lathe/core/files/safe_path.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(SafePathTest, PathsStayInside) {
  EXPECT_TRUE(IsSafePath("a/b.c"));
  for (const char* path : {"", "/a", "a//b", "../a", "a/..", "./a", "a/", "a\\b", "a\nb"}) {
    EXPECT_FALSE(IsSafePath(path)) << path;
  }
}

}  // namespace
}  // namespace lathe
