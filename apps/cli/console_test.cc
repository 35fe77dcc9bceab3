#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "lathe/apps/cli/report_error.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/progress.h"

namespace {
// How many renames succeed before one fails; -1 if none fails.
int bad_rename = -1;
bool bad_rename_kills = false;
}  // namespace

// Replaces the C library's rename in the whole process.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (bad_rename >= 0 && bad_rename-- == 0) {
    if (bad_rename_kills) _exit(0);
    errno = EIO;
    return -1;
  }
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

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
      throw FileError(dir + "/b", ENOSPC);
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), root_ + "/b: No space left on device");
  }
  EXPECT_EQ(ReadFile(root_ + "/a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2);
}

// In a container the next program often has the number of the one that was killed.
TEST_F(OutputDirTest, KeepsTheModelThatAKilledProgramOfTheSameNumberLeft) {
  const std::string left = root_ + "/.partial." + std::to_string(getpid()) + "/old";
  fs::create_directories(left);
  WriteFileAtomically(left + "/config.json", "old");
  OutputDir out(root_, true);
  out.Replace([](const std::string& dir) { WriteFileAtomically(dir + "/config.json", "new"); });
  EXPECT_EQ(ReadFile(left + "/config.json"), "old");
  EXPECT_EQ(ReadFile(root_ + "/config.json"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2);
}

class ReplaceFaultTest : public OutputDirTest {
 protected:
  static constexpr const char* kNames[] = {"config.json", "model.safetensors", "vocab.txt"};

  // Writes the old model. It has one more file, which a loader would prefer to vocab.txt.
  void WriteOldModel() const {
    fs::remove_all(root_);
    fs::create_directories(root_);
    for (const char* name : kNames) WriteFileAtomically(root_ + "/" + name, "old");
    WriteFileAtomically(root_ + "/tokenizer.json", "old");
  }
  void ReplaceWithFault(int at, bool kills) const {
    OutputDir(root_, true).Replace([&](const std::string& dir) {
      for (const char* name : kNames) WriteFileAtomically(dir + "/" + name, "new");
      bad_rename = at;
      bad_rename_kills = kills;
    });
    bad_rename = -1;
  }
  std::string Contents(const std::string& name) const {
    return fs::exists(root_ + "/" + name) ? ReadFile(root_ + "/" + name) : "none";
  }
  // Returns true if the folder holds all files of this model and none of the other.
  bool HoldsModel(const std::string& version) const {
    for (const char* name : kNames)
      if (Contents(name) != version) return false;
    return Contents("tokenizer.json") == (version == "old" ? "old" : "none");
  }
  int CountFiles() const {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root_))
      files += !entry.is_directory();
    return files;
  }
};

TEST_F(ReplaceFaultTest, CrashNeverMixesModels) {
  int crashes = 0, unloadable = 0;
  for (bool finished = false; !finished; ++crashes) {
    ASSERT_LT(crashes, 100);
    WriteOldModel();
    const pid_t child = fork();
    if (child == 0) {
      ReplaceWithFault(crashes, /*kills=*/true);
      _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    finished = WEXITSTATUS(status) == 1;
    if (finished) break;
    EXPECT_EQ(CountFiles(), 7) << "a file of either model is lost";
    unloadable += Contents("config.json") == "none";
    EXPECT_TRUE(HoldsModel("old") || Contents("config.json") == "none") << crashes;
  }
  EXPECT_EQ(crashes, 7);
  EXPECT_EQ(unloadable, 6);
  EXPECT_TRUE(HoldsModel("new"));
}

TEST_F(ReplaceFaultTest, FailedRenameIsUndone) {
  for (int at = 0; at < 7; ++at) {
    WriteOldModel();
    EXPECT_THROW(ReplaceWithFault(at, /*kills=*/false), Error) << at;
    EXPECT_TRUE(HoldsModel("old")) << at;
    EXPECT_EQ(CountFiles(), 4) << at;
  }
}

TEST_F(ReplaceFaultTest, FolderInTheWayStays) {
  fs::create_directories(root_ + "/vocab.txt/mine");
  EXPECT_THROW(ReplaceWithFault(-1, false), Error);
  EXPECT_TRUE(fs::exists(root_ + "/vocab.txt/mine"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
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
