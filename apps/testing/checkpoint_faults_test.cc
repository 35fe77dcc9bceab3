// Tests that nothing is lost to faults that last: a disk that stays full, and signals that come
// while a checkpoint is being written.
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

// While one exists, programs meet a fault (fault_shim.cc).
class Fault {
 public:
  Fault(const std::string& fault, const std::string& path, const std::string& mark) {
    setenv("LD_PRELOAD", "apps/testing/libfault_shim.so", 1);
    setenv("LATHE_FAULT", fault.c_str(), 1);
    setenv("LATHE_FAULT_PATH", path.c_str(), 1);
    setenv("LATHE_FAULT_MARK", mark.c_str(), 1);
  }
  ~Fault() {
    for (const char* name : {"LD_PRELOAD", "LATHE_FAULT", "LATHE_FAULT_PATH", "LATHE_FAULT_MARK"})
      unsetenv(name);
  }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
};

class CheckpointFaultsTest : public LaunchedTest {
 protected:
  // Runs finetune for 9 steps into `out`, with `more`.
  RunResult Run(const std::string& out, const Args& more, const RunOptions& options = {}) const {
    Args args = TrainingArgs(out, {"--num_threads", "1", "--disable_tqdm", "--max_steps", "9"});
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("finetune", args, options);
  }
  // Returns the newest checkpoint that the program says is saved; "" if there is none.
  static std::string LastAcknowledged(const std::string& out) {
    std::istringstream lines(out);
    std::string last;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("saved ")) last = line.substr(6);
    return last;
  }
};

// Every write from some call on fails, also those of the final model. What was saved before stays.
TEST_F(CheckpointFaultsTest, ADiskThatStaysFullCostsWhatComesAfter) {
  const Args saves = {"--save_steps", "3", "--no_report"};
  ASSERT_EQ(Run("whole", saves).exit_code, 0);
  const int stride = FaultRounds() > 1 ? 3 : 20;
  int errors = 0, resumes = 0;
  for (int call = 1;; call += stride) {
    fs::remove(Path("mark"));
    fs::remove_all(Path("out"));
    std::string saved;
    {
      const Fault fault("write:" + std::to_string(call) + "+:" + std::to_string(ENOSPC), "/out/",
                        Path("mark"));
      const RunResult run = Run("out", saves);
      if (!Exists("mark")) break;
      saved = LastAcknowledged(run.out);
      if (run.exit_code != 0) {
        ++errors;
        ExpectError(run, "No space left on device");
        // The model is there as a whole, or not at all.
        if (Exists("out/config.json")) {
          EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors")) << call;
        }
      }
    }
    if (fs::exists(Path("out"))) {
      const CheckpointSearch search = FindNewestCheckpoint(Path("out"));
      EXPECT_EQ(search.left_out, Args()) << call;
      EXPECT_EQ(search.newest ? search.newest->path : "", saved) << call;
    }
    // The disk has room again.
    Args again = saves;
    again.push_back(saved.empty() ? "--overwrite_output_dir" : "--resume_from_checkpoint");
    const RunResult end = Run("out", again);
    ASSERT_EQ(end.exit_code, 0) << call << end.err;
    EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors")) << call;
    resumes += saved.empty() ? 0 : 1;
  }
  EXPECT_GT(errors, 1);
  EXPECT_GT(resumes, 0);
}

// Signals within a second count as one request. These come further apart, while the first is
// obeyed: the checkpoint's first write takes longer than all of them.
TEST_F(CheckpointFaultsTest, LaterSignalsDoNotCutACheckpoint) {
  const Args options = {"--max_steps", "400"};
  ASSERT_EQ(Run("whole", options).exit_code, 0);
  {
    const Fault fault("write:1:@8000", "checkpoint-", Path("mark"));
    const RunResult run = Run("out", options,
                              {.interrupt_after = "step 5/",
                               .interrupts = 3,
                               .interrupt_pause = std::chrono::milliseconds(2500)});
    EXPECT_EQ(run.exit_code, 130) << run.out << run.err;
    EXPECT_TRUE(Exists("mark"));
    EXPECT_NE(run.out.find("\nto go on, run: "), std::string::npos) << run.out;
  }
  const CheckpointSearch search = FindNewestCheckpoint(Path("out"));
  ASSERT_TRUE(search.newest);
  EXPECT_GE(search.newest->manifest.step, 5);
  EXPECT_EQ(search.left_out, Args());
  const RunResult end = Run("out", {"--max_steps", "400", "--resume_from_checkpoint"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(Read("out/model.safetensors"), Read("whole/model.safetensors"));
}

}  // namespace
}  // namespace lathe
