#include "lathe/data/column_files/make_once.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "lathe/core/base/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

class MakeOnceTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/" +
              testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
              std::to_string(getpid());
    path_ = folder_ + "/cache/rows.h5";
  }
  ~MakeOnceTest() override { fs::remove_all(folder_); }

  // Makes a file with the process's number, after a wait. Notes that in a file of its own.
  MakeOnceOptions Options(int milliseconds) const {
    return {.is_there = [this] { return fs::exists(path_); },
            .make =
                [=, this](const std::string& draft) {
                  FileWriter note(folder_ + "/made_by_" + std::to_string(getpid()), "note");
                  usleep(static_cast<useconds_t>(1000 * milliseconds));
                  FileWriter file(draft, path_);
                  file.Write("whole", 5);
                }};
  }
  // Calls MakeOnce in a child process, which exits with 0 if that succeeds.
  pid_t Start(const MakeOnceOptions& options) const {
    const pid_t child = fork();
    if (child != 0) return child;
    try {
      MakeOnce(path_, options);
      _exit(ReadFile(path_) == "whole" ? 0 : 2);
    } catch (...) {
      _exit(1);
    }
  }
  int FilesIn(const std::string& folder) const {
    return static_cast<int>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }

  std::string folder_, path_;
};

TEST_F(MakeOnceTest, OneOfManyProcessesMakesIt) {
  fs::create_directories(folder_);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) children.push_back(Start(Options(50)));
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(FilesIn(folder_ + "/cache"), 1);  // and no draft
  EXPECT_EQ(FilesIn(folder_), 2);             // the folder and one note
}

TEST_F(MakeOnceTest, GoesOnAfterAKilledProcess) {
  fs::create_directories(folder_);
  const pid_t child = Start(Options(60000));
  while (FilesIn(folder_) < 2) usleep(1000);  // until it has begun
  const pid_t waiting = Start(Options(0));
  usleep(20000);
  EXPECT_EQ(waitpid(waiting, nullptr, WNOHANG), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  int status = -1;
  waitpid(waiting, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadFile(path_), "whole");
}

TEST_F(MakeOnceTest, RemovesDraftsThatNobodyWrites) {
  fs::create_directories(folder_ + "/cache");
  FileWriter(folder_ + "/cache/old.lathe_draft", "old").Write("part", 4);
  FileWriter(folder_ + "/cache/novel.draft", "novel").Write("text", 4);  // somebody's own
  bool waited = false;
  MakeOnceOptions options = Options(0);
  options.on_wait = [&] { waited = true; };
  MakeOnce(path_, options);
  EXPECT_FALSE(waited);
  EXPECT_FALSE(fs::exists(folder_ + "/cache/old.lathe_draft"));
  EXPECT_TRUE(fs::exists(folder_ + "/cache/novel.draft"));
  EXPECT_EQ(FilesIn(folder_ + "/cache"), 2);
}

TEST_F(MakeOnceTest, LeavesNothingBehindAFailure) {
  MakeOnceOptions options = Options(0);
  options.make = [](const std::string& draft) {
    FileWriter(draft, draft).Write("part", 4);
    throw NotFound("no rows");
  };
  EXPECT_THROW(MakeOnce(path_, options), Error);
  EXPECT_EQ(FilesIn(folder_ + "/cache"), 0);
}

TEST_F(MakeOnceTest, NamesAFolderThatCannotBeMade) {
  fs::create_directories(folder_);
  FileWriter(folder_ + "/cache", "cache").Write("a file", 6);
  try {
    MakeOnce(path_, Options(0));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), folder_ + "/cache: Not a directory");
  }
}

}  // namespace
}  // namespace lathe
