#include "lathe/core/base/file.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace lathe {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("file_test_") + info->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  static int CountFiles(const fs::path& dir) {
    return static_cast<int>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
  }
  template <typename F>
  static Error Catch(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return InvalidArgument("");
  }

  fs::path dir_;
};

TEST_F(FileTest, ReadsBackWhatWasWritten) {
  std::string contents("a\0b\r\n\xff", 6);
  WriteFileAtomically(Path("f"), contents);
  EXPECT_EQ(ReadFile(Path("f")), contents);
  WriteFileAtomically(Path("f"), "");
  EXPECT_EQ(ReadFile(Path("f")), "");
  EXPECT_EQ(CountFiles(dir_), 1);
}

TEST_F(FileTest, ReadsFilesThatDoNotTellTheirSize) {
  EXPECT_NE(ReadFile("/proc/self/status").find("Pid:"), std::string::npos);
}

TEST_F(FileTest, MissingFileAndFolder) {
  const Error missing = Catch([&] { ReadFile(Path("none")); });
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), Path("none") + ": No such file or directory");
  EXPECT_EQ(Catch([&] { WriteFileAtomically(Path("none/f"), "x"); }).message(),
            Path("none/f") + ": No such file or directory");
  EXPECT_EQ(Catch([&] { ReadFile(dir_.string()); }).message(), dir_.string() + ": Is a directory");
}

TEST_F(FileTest, FailedCallbackLeavesTheOldFile) {
  WriteFileAtomically(Path("f"), "old");
  EXPECT_THROW(WriteFileAtomically(Path("f"),
                                   [](const std::string& temporary) {
                                     std::ofstream(temporary) << "half";
                                     throw std::runtime_error("no more");
                                   }),
               std::runtime_error);
  EXPECT_EQ(ReadFile(Path("f")), "old");
  EXPECT_EQ(CountFiles(dir_), 1);
}

TEST_F(FileTest, FailedRenameRemovesTheTemporary) {
  fs::create_directories(dir_ / "f" / "inside");
  EXPECT_THROW(WriteFileAtomically(Path("f"), "x"), Error);
  EXPECT_TRUE(fs::is_directory(dir_ / "f" / "inside"));
  EXPECT_EQ(CountFiles(dir_), 1);
}

TEST_F(FileTest, ErrorsSayWhichFileTheyAreAbout) {
  const Error error = Catch([&] { ReadFile(Path("none")); });
  ASSERT_NE(error.detail<AboutFile>(), nullptr);
  EXPECT_EQ(error.detail<AboutFile>()->path, Path("none"));
  EXPECT_EQ(error.detail<AboutFile>()->problem, "No such file or directory");
  const Error own = FileError(absl::StatusCode::kDataLoss, "a/b", "is damaged", "copy it again")
                        .WithHint("other");
  EXPECT_EQ(own.message(), "a/b: is damaged");
  EXPECT_EQ(own.detail<AboutFile>()->path, "a/b");
}

TEST_F(FileTest, AnErrorMovesToAnotherFolder) {
  const Error inside = FileError(absl::StatusCode::kDataLoss, "a/b/c", "is damaged", "copy it");
  const Error moved = WithFolder(inside, "a/b", "d");
  EXPECT_EQ(moved.message(), "d/c: is damaged");
  EXPECT_EQ(moved.hint(), "copy it");
  EXPECT_EQ(moved.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(moved.detail<AboutFile>()->path, "d/c");
  EXPECT_EQ(WithFolder(inside, "a/b/c", "d").message(), "d: is damaged");
  EXPECT_EQ(WithFolder(inside, "a/bc", "d").message(), "a/b/c: is damaged");
  EXPECT_EQ(WithFolder(inside, "a/b/", "d").message(), "a/b/c: is damaged");
  // The text alone doesn't make it an error about a file.
  EXPECT_EQ(WithFolder(DataLoss("a/b/c: is damaged"), "a/b", "d").message(), "a/b/c: is damaged");
}

TEST_F(FileTest, PathsWithinAFolder) {
  EXPECT_EQ(PathWithin("a/b", "a/b"), "");
  EXPECT_EQ(PathWithin("a/b", "a/b/c/d"), "c/d");
  EXPECT_EQ(PathWithin("a/b", "a/bc"), std::nullopt);
  EXPECT_EQ(PathWithin("a/b", "a"), std::nullopt);
}

TEST_F(FileTest, KeepsTheModeOfTheOldFile) {
  WriteFileAtomically(Path("f"), "old");
  fs::permissions(dir_ / "f", fs::perms(0640));
  WriteFileAtomically(Path("f"), "new");
  EXPECT_EQ(fs::status(dir_ / "f").permissions(), fs::perms(0640));
}

TEST_F(FileTest, SizeLimitLeavesTheOldFile) {
  WriteFileAtomically(Path("f"), "old");
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Error error = Catch([&] { WriteFileAtomically(Path("f"), std::string(1 << 20, 'x')); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(error.message(), Path("f") + ": File too large");
  EXPECT_EQ(ReadFile(Path("f")), "old");
  EXPECT_EQ(CountFiles(dir_), 1);
}

TEST_F(FileTest, FullDiskLeavesTheOldFile) {
  const std::string disk = Path("disk");
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "may not mount a small disk";
  }
  const std::string file = disk + "/f";
  WriteFileAtomically(file, "old");
  const Error error = Catch([&] { WriteFileAtomically(file, std::string(1 << 20, 'x')); });
  const std::string kept = ReadFile(file);
  const int files = CountFiles(disk);
  ASSERT_EQ(umount(disk.c_str()), 0);
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error.message(), file + ": No space left on device");
  EXPECT_FALSE(error.hint().empty());
  EXPECT_EQ(kept, "old");
  EXPECT_EQ(files, 1);
}

TEST_F(FileTest, WritersAtOnceLeaveOneWholeFile) {
  std::vector<std::thread> threads;
  for (char c : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([this, c] {
      for (int i = 0; i < 20; ++i) {
        WriteFileAtomically(Path("f"), std::string(10000, c));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const std::string contents = ReadFile(Path("f"));
  EXPECT_EQ(contents, std::string(10000, contents[0]));
  EXPECT_EQ(CountFiles(dir_), 1);
}

TEST(FileWriterTest, FullDeviceIsReportedUnderTheShownName) {
  FileWriter writer("/dev/full", "shown");
  try {
    writer.Write("x", 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "shown: No space left on device");
  }
}

}  // namespace
}  // namespace lathe
