// Tests that a job knows its own folder again, and takes no other's for its own.
#include "lathe/train/checkpoint/job_mark.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

class JobMarkTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    Set("RANK", "0");
    Set("WORLD_SIZE", "1");
    Set("LOCAL_RANK", "0");
    Set("LOCAL_WORLD_SIZE", "1");
    Set("LATHE_JOB_ID", "a");
    Set(kMaxRestartsVariable, "3");
  }
  static void Set(const char* name, const char* value) { setenv(name, value, 1); }
  // Returns what a child of this process finds, whose launcher is this process.
  bool IsOwnOfChild() const {
    const pid_t child = fork();
    if (child == 0) _exit(IsOwnFolder(dir_) ? 1 : 0);
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status) == 1;
  }
  const std::string dir_ = testing::TempDir() + "job_mark_test";
};

TEST(IsSameJobTest, LaunchersOfOneMachineDecide) {
  const JobIdentity job{"a", "boot 12 345"};
  EXPECT_TRUE(IsSameJob(job, job));
  EXPECT_FALSE(IsSameJob(job, {"b", "boot 12 345"}));
  EXPECT_FALSE(IsSameJob(job, {"a", "boot 12 346"}));
  EXPECT_FALSE(IsSameJob(job, {"a", "boot 13 345"}));
  EXPECT_TRUE(IsSameJob(job, {"a", "other 12 345"}));
  EXPECT_TRUE(IsSameJob(job, {"a", ""}));
  EXPECT_TRUE(IsSameJob({"a", ""}, job));
}

// torchrun's default name is that of many jobs.
TEST(IsSameJobTest, NoneIsNoName) {
  EXPECT_TRUE(IsSameJob({"none", "boot 12 345"}, {"none", "boot 12 345"}));
  EXPECT_FALSE(IsSameJob({"none", "boot 12 345"}, {"none", "other 12 345"}));
  EXPECT_FALSE(IsSameJob({"none", ""}, {"none", ""}));
  EXPECT_FALSE(IsSameJob({"", ""}, {"", ""}));
}

TEST_F(JobMarkTest, TheJobKnowsItsFolderAgain) {
  EXPECT_FALSE(IsOwnFolder(dir_));
  MarkFolder(dir_);
  EXPECT_TRUE(IsOwnFolder(dir_));
  EXPECT_FALSE(IsOwnOfChild()) << "another launcher gave its job the same name";
  Set("LATHE_JOB_ID", "b");
  EXPECT_FALSE(IsOwnFolder(dir_));
  Set("LATHE_JOB_ID", "a");
  RemoveMark(dir_);
  EXPECT_FALSE(IsOwnFolder(dir_));
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(JobMarkTest, NoMarkWithoutRestarts) {
  unsetenv(kMaxRestartsVariable);
  MarkFolder(dir_);
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(JobMarkTest, ADamagedMarkProvesNothing) {
  for (const char* text : {"", "{", "3", "[]", "{\"job\": 3}", "{\"launcher\": \"x\"}"}) {
    WriteFileAtomically(dir_ + "/" + kJobMark, text);
    EXPECT_FALSE(IsOwnFolder(dir_)) << text;
  }
}

// JSON in JSON without end would overflow the stack of what walks it.
TEST_F(JobMarkTest, AMarkThatIsNestedDeeplyProvesNothing) {
  MarkFolder(dir_);
  ASSERT_TRUE(IsOwnFolder(dir_));
  std::string mark = ReadFile(dir_ + "/" + kJobMark);
  mark.insert(mark.find('{') + 1,
              "\"deep\": " + std::string(300, '[') + std::string(300, ']') + ",");
  WriteFileAtomically(dir_ + "/" + kJobMark, mark);
  EXPECT_FALSE(IsOwnFolder(dir_));
}

TEST_F(JobMarkTest, APipeInThePlaceOfTheMarkProvesNothing) {
  ASSERT_EQ(mkfifo((dir_ + "/" + kJobMark).c_str(), 0600), 0);
  EXPECT_FALSE(IsOwnFolder(dir_));
}

TEST_F(JobMarkTest, ACheckpointIsAMarkToo) {
  const JobIdentity own = OwnIdentity();
  CheckpointDraft draft(dir_, "checkpoint-5");
  draft.Commit({.step = 5, .about = {{kJobKey, own.job}, {kLauncherKey, own.launcher}}});
  EXPECT_TRUE(IsOwnFolder(dir_));
  EXPECT_FALSE(IsOwnOfChild());
}

// A mark alone is nothing that the user could lose.
TEST_F(JobMarkTest, AFolderWithAMarkAloneCountsAsEmpty) {
  MarkFolder(dir_);
  EXPECT_NO_THROW(OutputDir(dir_, /*allow_existing=*/false));
  WriteFileAtomically(dir_ + "/mine", "1");
  EXPECT_THROW(OutputDir(dir_, /*allow_existing=*/false), UsageError);
}

}  // namespace
}  // namespace lathe
