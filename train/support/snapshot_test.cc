#include "lathe/train/support/snapshot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

namespace lathe {
namespace {

namespace fs = std::filesystem;

class SnapshotTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  ~SnapshotTest() override { fs::remove_all(dir_); }
  std::string dir_ = testing::TempDir() + "/snapshot_test_" + std::to_string(getpid());
};

TEST_F(SnapshotTest, GivesBackWhatWasTakenLast) {
  Snapshot snapshot(dir_);
  EXPECT_FALSE(snapshot.taken());
  EXPECT_EQ(snapshot.Take(std::vector<float>{1, 2, 3}), 0);
  EXPECT_EQ(snapshot.Take(std::vector<float>{4, 5, 6}), 0);
  ASSERT_TRUE(snapshot.taken());
  std::vector<float> values(3);
  snapshot.Restore(values);
  EXPECT_EQ(values, (std::vector<float>{4, 5, 6}));
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(SnapshotTest, NeedsNoTmpfileSupport) {
  for (const bool use_tmpfile : {true, false}) {
    const int fd = OpenUnnamedFile(dir_, use_tmpfile);
    ASSERT_GE(fd, 0);
    EXPECT_TRUE(fs::is_empty(dir_));
    EXPECT_EQ(pwrite(fd, "abc", 3, 0), 3);
    char text[3];
    EXPECT_EQ(pread(fd, text, 3, 0), 3);
    EXPECT_EQ(std::string(text, 3), "abc");
    close(fd);
  }
}

TEST_F(SnapshotTest, SaysWhyThereIsNone) {
  Snapshot snapshot(dir_ + "/missing");
  EXPECT_EQ(snapshot.Take(std::vector<float>{1}), ENOENT);
  EXPECT_FALSE(snapshot.taken());
}

}  // namespace
}  // namespace lathe
