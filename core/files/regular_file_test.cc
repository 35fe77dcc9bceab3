#include "lathe/core/files/regular_file.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Returns the error's message; "" if there is none.
std::string ErrorOf(const std::string& path) {
  try {
    ReadRegularFile(path);
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(RegularFileTest, ReadsFilesAndThoseThatLinksLeadTo) {
  const std::string dir = testing::TempDir() + "regular_file_test";
  fs::remove_all(dir);
  fs::create_directories(dir);
  WriteFileAtomically(dir + "/file", "text");
  fs::create_symlink(dir + "/file", dir + "/link");
  EXPECT_EQ(ReadRegularFile(dir + "/file"), "text");
  EXPECT_EQ(ReadRegularFile(dir + "/link"), "text");
}

// Without the check, nothing would ever end the wait for a writer.
TEST(RegularFileTest, RefusesPipesAndDevicesAtOnce) {
  const std::string dir = testing::TempDir() + "regular_file_test_pipes";
  fs::remove_all(dir);
  fs::create_directories(dir);
  const std::string pipe = dir + "/pipe", link = dir + "/link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  EXPECT_EQ(ErrorOf(pipe), pipe + ": is not a regular file");
  EXPECT_EQ(ErrorOf(link), link + ": is not a regular file");
  EXPECT_EQ(ErrorOf("/dev/zero"), "/dev/zero: is not a regular file");
  EXPECT_EQ(ErrorOf(dir), dir + ": Is a directory");
  EXPECT_EQ(ErrorOf(dir + "/none"), dir + "/none: No such file or directory");
}

}  // namespace
}  // namespace lathe
