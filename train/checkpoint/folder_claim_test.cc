// Tests that a folder belongs to one process at a time, and never to one that has ended.
#include "lathe/train/checkpoint/folder_claim.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "lathe/core/base/file.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/run_errors.h"

namespace {

bool no_locks = false;

}  // namespace

// Stands in for the C library's, to fail as on file systems without locks.
extern "C" int flock(int fd, int operation) noexcept {
  if (!no_locks) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = ENOLCK;
  return -1;
}

namespace lathe {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kShort(100);

// A forked process, which is killed at the end.
class Child {
 public:
  // `body` runs in the process and calls `tell` once others may go on.
  explicit Child(const std::function<void(const std::function<void()>& tell)>& body) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    process_ = fork();
    if (process_ == 0) {
      body([&] { EXPECT_EQ(write(ends[1], "x", 1), 1); });
      _exit(0);
    }
    close(ends[1]);
    char told = 0;
    EXPECT_EQ(read(ends[0], &told, 1), 1);
    close(ends[0]);
  }
  ~Child() { Kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void Kill() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
};

class FolderClaimTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~FolderClaimTest() override {
    no_locks = false;
    fs::remove_all(dir_);
  }
  // Claims the folder until it is killed.
  void ClaimForEver(const std::function<void()>& tell) const {
    const FolderClaim claim(dir_);
    tell();
    pause();
  }
  // Returns the error's message if the folder can't be claimed, else "".
  std::string Refusal(milliseconds patience = kShort) const {
    try {
      const FolderClaim claim(dir_, patience);
      return "";
    } catch (const UsageError& e) {
      return e.message();
    }
  }
  bool IsFree() const {
    try {
      CheckNotClaimed(dir_, milliseconds(0));
      return true;
    } catch (const UsageError&) {
      return false;
    }
  }
  std::string LockFile() const { return dir_ + "/" + kFolderLock; }

  const std::string dir_ = testing::TempDir() + "folder_claim_test_" + std::to_string(getpid());
};

TEST_F(FolderClaimTest, AnotherProcessIsRefusedUntilThisOneHasEnded) {
  Child other([&](const auto& tell) { ClaimForEver(tell); });
  char host[128] = "";
  gethostname(host, sizeof host - 1);
  EXPECT_EQ(Refusal(), dir_ + ": output_dir is in use by process " +
                           std::to_string(other.process()) + " on " + host);
  EXPECT_FALSE(IsFree());
  other.Kill();
  EXPECT_TRUE(IsFree());
  EXPECT_TRUE(fs::exists(LockFile())) << "it had no time to remove it";
  EXPECT_NO_THROW(OutputDir(dir_, /*allow_existing=*/false));
  EXPECT_EQ(Refusal(), "");
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(FolderClaimTest, WaitsForAProcessThatIsAboutToEnd) {
  const Child other([&](const auto& tell) {
    const FolderClaim claim(dir_);
    tell();
    std::this_thread::sleep_for(milliseconds(300));
  });
  EXPECT_EQ(Refusal(seconds(20)), "");
}

TEST_F(FolderClaimTest, OneProcessMayClaimAFolderAgain) {
  std::optional<FolderClaim> first(dir_);
  fs::create_directory_symlink(dir_, dir_ + ".link");
  const FolderClaim second(dir_ + ".link", kShort);
  fs::remove(dir_ + ".link");
  EXPECT_TRUE(IsFree());
  {
    const Child forked([&](const auto& tell) {
      if (Refusal().empty()) tell();
    });
  }
  first.reset();
  EXPECT_TRUE(fs::exists(LockFile()));
}

TEST_F(FolderClaimTest, TheLastClaimOfAProcessDecides) {
  const Child other([&](const auto& tell) {
    std::optional<FolderClaim> first(dir_);
    const FolderClaim second(dir_);
    first.reset();
    tell();
    std::this_thread::sleep_for(milliseconds(1500));
  });
  EXPECT_NE(Refusal(), "");
  EXPECT_EQ(Refusal(seconds(20)), "");
  EXPECT_TRUE(fs::is_empty(dir_));
}

// A process that the training has forked may outlive it.
TEST_F(FolderClaimTest, AForkedProcessKeepsNoClaim) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  Child training([&](const auto& tell) {
    const FolderClaim claim(dir_);
    const pid_t forked = fork();
    if (forked == 0) pause();
    EXPECT_EQ(write(ends[1], &forked, sizeof forked), static_cast<ssize_t>(sizeof forked));
    tell();
    pause();
  });
  pid_t forked = 0;
  ASSERT_EQ(read(ends[0], &forked, sizeof forked), static_cast<ssize_t>(sizeof forked));
  EXPECT_FALSE(IsFree());
  training.Kill();
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(kill(forked, SIGKILL), 0) << "it has ended before";
  for (const int end : ends) close(end);
}

TEST_F(FolderClaimTest, WithoutLocksNothingIsRefused) {
  no_locks = true;
  const Child other([&](const auto& tell) { ClaimForEver(tell); });
  EXPECT_EQ(Refusal(), "");
  EXPECT_TRUE(IsFree());
  EXPECT_TRUE(fs::is_empty(dir_));
}

// Anybody may write into the file, so its text is not trusted.
TEST_F(FolderClaimTest, ADamagedFileNamesNobody) {
  const Child other([&](const auto& tell) { ClaimForEver(tell); });
  for (const std::string& text :
       {std::string(), std::string("nonsense\n"), "process " + std::string(5000, '7') + "\n"}) {
    FileWriter file(LockFile(), LockFile());
    file.Write(text.data(), text.size());
    file.Close();
    EXPECT_EQ(Refusal(), dir_ + ": output_dir is in use by another process");
  }
}

TEST_F(FolderClaimTest, AFolderThatIsNotThereIsFree) {
  fs::remove_all(dir_);
  EXPECT_TRUE(IsFree());
  EXPECT_FALSE(fs::exists(dir_));
}

// A pipe tells nothing before somebody writes to it, so nothing may wait for it.
TEST_F(FolderClaimTest, APipeOfTheLocksNameIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(LockFile().c_str(), 0600), 0);
  EXPECT_TRUE(IsFree());
  EXPECT_EQ(Refusal(), "");
}

}  // namespace
}  // namespace lathe
