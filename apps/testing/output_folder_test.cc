// Tests who may write to an output folder, and what may lie there: another training that still
// runs, checkpoints that were moved to other disks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
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

// One training writes to a folder at a time. Evaluations are welcome meanwhile.
TEST_F(OutputFolderTest, ASecondTrainingIsRefusedWhileTheFirstRuns) {
  RunResult first;
  std::thread job([&] {
    first = RunProgram("finetune", Options({"--max_steps", "100000", "--save_steps", "500"}));
  });
  constexpr char kProcess[] = "process ";
  std::string holder;
  EXPECT_TRUE(WaitUntil([&] { return Exists("out/checkpoint-500"); }));
  if (Exists("out/.lathe_lock")) holder = Read("out/.lathe_lock");
  const bool named = holder.starts_with(kProcess);
  EXPECT_TRUE(named) << holder;
  holder = holder.substr(0, holder.find('\n'));
  for (const Args& more :
       {Args{}, Args{"--overwrite_output_dir"}, Args{"--resume_from_checkpoint", "true"}}) {
    ExpectError(RunProgram("finetune", Options(more)),
                Path("out") + ": output_dir is in use by " + holder, 2);
  }
  const RunResult evaluation = RunProgram(
      "finetune", {"--model_name_or_path", Path("out/checkpoint-500"), "--validation_file",
                   Path("dev.csv"), "--do_eval", "--output_dir", Path("out")});
  EXPECT_EQ(evaluation.exit_code, 0) << evaluation.err;
  if (named) kill(std::stoi(holder.substr(strlen(kProcess))), SIGKILL);
  job.join();
  EXPECT_EQ(first.exit_code, 128 + SIGKILL) << first.out << first.err;
  const RunResult next = RunProgram(
      "finetune", Options({"--max_steps", "6", "--overwrite_output_dir", "--do_predict"}));
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_FALSE(Exists("out/.lathe_lock"));
}

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

// JSON in JSON without end overflows the stack of what copies it. A pipe lets a reader wait
// forever.
TEST_F(OutputFolderTest, OldResultsThatCantBeReadAreNone) {
  ASSERT_EQ(
      RunProgram("finetune", Options({"--max_steps", "1", "--save_strategy", "no"})).exit_code, 0);
  const std::string deep(2'000'000, '['), end(2'000'000, ']');
  for (const char* name : {"deep", "pipe"}) {
    fs::create_directory(Path(name));
    const std::string file = std::string(name) + "/all_results.json";
    if (name == std::string("deep")) {
      Write(file, "{\"train_loss\": " + deep + end + "}");
    } else {
      ASSERT_EQ(mkfifo(Path(file).c_str(), 0600), 0);
    }
    const RunResult run =
        RunProgram("finetune", {"--model_name_or_path", Path("out"), "--validation_file",
                                Path("dev.csv"), "--do_eval", "--output_dir", Path(name)});
    EXPECT_EQ(run.exit_code, 0) << name << run.err;
    EXPECT_TRUE(Contains(Read(file), "\"eval_loss\"")) << name;
    EXPECT_FALSE(Contains(Read(file), "train_loss")) << name;
  }
}

// A program was killed while it replaced the model, and has left the old one in its own folder.
TEST_F(OutputFolderTest, FilesOfAModelThatWasNotReplacedAreTold) {
  fs::create_directories(Path("out/.partial.7/old"));
  fs::create_directories(Path("out/.partial.8/old"));
  const RunResult without = RunProgram("finetune", Options({"--overwrite_output_dir"}));
  EXPECT_EQ(without.exit_code, 0) << without.err;
  EXPECT_FALSE(Contains(without.out, ".partial.")) << without.out;
  Write("out/.partial.7/old/config.json", "{}");
  const RunResult with = RunProgram("finetune", Options({"--overwrite_output_dir"}));
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_TRUE(
      Contains(with.out, Path("out/.partial.7") + " has files of a model that was being saved"))
      << with.out;
  EXPECT_FALSE(Contains(with.out, ".partial.8")) << with.out;
  EXPECT_EQ(Read("out/.partial.7/old/config.json"), "{}");
}

}  // namespace
}  // namespace lathe
