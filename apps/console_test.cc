#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "lathe/apps/output_dir.h"
#include "lathe/apps/progress.h"
#include "lathe/apps/report_error.h"
#include "lathe/core/error.h"
#include "lathe/core/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

class OutputDirTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  ~OutputDirTest() override { fs::remove_all(root_); }
  std::string root_ = testing::TempDir() + "/output_dir_test_" + std::to_string(getpid());
};

TEST_F(OutputDirTest, TakesUnusedFoldersAway) {
  { OutputDir out(root_ + "/a/b/", false); }
  EXPECT_FALSE(fs::exists(root_ + "/a"));
  { OutputDir(root_ + "/a/b", false).Write("x", "1"); }
  EXPECT_EQ(ReadFile(root_ + "/a/b/x"), "1");
}

TEST_F(OutputDirTest, RefusesAFullFolderUnlessAllowed) {
  std::ofstream(root_ + "/x") << "1";
  EXPECT_THROW(OutputDir(root_, false), Error);
  EXPECT_NO_THROW(OutputDir(root_, true));
  EXPECT_THROW(OutputDir(root_ + "/x", true), Error);
  EXPECT_THROW(OutputDir(root_ + "/x/y", true), Error);
}

TEST_F(OutputDirTest, ReplaceIsAllOrNothing) {
  OutputDir out(root_, false);
  out.Replace([](const std::string& dir) {
    WriteFileAtomically(dir + "/a", "old");
    WriteFileAtomically(dir + "/b", "old");
  });
  try {
    out.Replace([](const std::string& dir) {
      WriteFileAtomically(dir + "/a", "new");
      throw InvalidArgument(dir + "/b: no space");
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), root_ + "/b: no space");
  }
  EXPECT_EQ(ReadFile(root_ + "/a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2);
}

TEST(ReportErrorsTest, TurnsExceptionsIntoExitCodes) {
  EXPECT_EQ(ReportErrors(2, [] { return 7; }), 7);
  testing::internal::CaptureStderr();
  EXPECT_EQ(ReportErrors(2, []() -> int { throw InvalidArgument("a\nb", "c"); }), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: a b\nhint: c\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(ReportErrors(1, []() -> int { throw std::runtime_error("x"); }), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: x\n");
}

TEST(FormatTest, NumbersForPeople) {
  EXPECT_EQ(FormatDuration(5), "0:05");
  EXPECT_EQ(FormatDuration(3661), "1:01:01");
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(109483778), "109,483,778");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
}

}  // namespace
}  // namespace lathe
