// Tests what else may lie in an output folder: checkpoints that were moved to other disks.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class OutputFolderTest : public LaunchedTest {
 protected:
  // Returns the arguments of finetune for a training in one thread that saves each third step.
  Args Options(const Args& more) const {
    Args args = TrainingArgs("out", {"--num_threads", "1", "--disable_tqdm", "--save_strategy",
                                     "steps", "--save_steps", "3"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

// The newest checkpoint lies elsewhere, an older one on a disk that is gone.
TEST_F(OutputFolderTest, GoesOnThroughALinkAndDeletesNothingElsewhere) {
  ASSERT_EQ(RunProgram("finetune", Options({"--max_steps", "6"})).exit_code, 0);
  fs::create_directory(Path("disk"));
  fs::rename(Path("out/checkpoint-6"), Path("disk/moved"));
  fs::create_directory_symlink(Path("disk/moved"), Path("out/checkpoint-6"));
  fs::create_directory_symlink(Path("gone"), Path("out/checkpoint-5"));
  const RunResult run =
      RunProgram("finetune", Options({"--max_steps", "12", "--save_total_limit", "1",
                                      "--resume_from_checkpoint", "true", "--resume_anyway"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(Contains(run.out, "after step 6, from " + Path("out") + "/checkpoint-6\n"))
      << run.out;
  EXPECT_TRUE(Contains(
      run.out, "left out checkpoint-5: is a link to " + Path("gone") + ", which is no folder here"))
      << run.out;
  EXPECT_FALSE(Exists("out/checkpoint-3"));
  EXPECT_FALSE(Exists("out/checkpoint-9"));
  EXPECT_TRUE(Exists("out/checkpoint-12"));
  EXPECT_TRUE(fs::is_symlink(Path("out/checkpoint-6")));
  EXPECT_NO_THROW(OpenCheckpoint(Path("disk/moved")));
}

}  // namespace
}  // namespace lathe
