// Tests that a failing or full disk, or a signal during a save, costs only what could not be
// written.
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

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
  // Runs finetune for `steps` steps into `out`, with `more`.
  RunResult Run(const std::string& out, const Args& more, const RunOptions& options = {},
                int steps = 9) const {
    Args args = TrainingArgs(
        out, {"--num_threads", "1", "--disable_tqdm", "--max_steps", std::to_string(steps)});
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("finetune", args, options);
  }
};

TEST_F(CheckpointFaultsTest, AFailingDiskCostsOneCheckpoint) {
  int faults = 0;
  for (const char* function : {"write", "fsync", "rename"}) {
    for (const int error : {EIO, ENOSPC}) {
      // All of the many writes fail in the same way. So only each ninth is tried by default.
      const int stride = FaultRounds() > 1 || function != std::string("write") ? 1 : 9;
      for (int call = 1;; call += stride) {
        fs::remove(Path("mark"));
        fs::remove_all(Path("out"));
        const std::string of = std::string(function) + ":" + std::to_string(call);
        const Fault fault(of + ":" + std::to_string(error), "checkpoint-6", Path("mark"));
        const RunResult result = Run("out", {"--save_steps", "3"});
        if (!Exists("mark")) break;
        ++faults;
        EXPECT_EQ(result.exit_code, 0) << of << result.out << result.err;
        EXPECT_NE(result.out.find("warning: no checkpoint was saved after step 6: " + Path("out") +
                                  "/checkpoint-6"),
                  std::string::npos)
            << of << result.out;
        EXPECT_NE(result.out.find("; the newest one is " + Path("out") + "/checkpoint-3\n"),
                  std::string::npos)
            << of << result.out;
        EXPECT_NO_THROW(OpenCheckpoint(Path("out/checkpoint-3"))) << of;
        EXPECT_NO_THROW(OpenCheckpoint(Path("out/checkpoint-9"))) << of;
        EXPECT_FALSE(Exists("out/checkpoint-6")) << of;
      }
    }
  }
  EXPECT_GT(faults, 30);
  const Fault fault("fsync:1:" + std::to_string(ENOSPC), "checkpoint-6", Path("mark"));
  fs::remove_all(Path("out"));
  const RunResult stopped = Run("out", {"--save_steps", "3", "--save_failure", "stop"});
  ExpectError(stopped, "no checkpoint was saved after step 6: " + Path("out") + "/checkpoint-6");
  EXPECT_NO_THROW(OpenCheckpoint(Path("out/checkpoint-3")));
}

// Each step is saved, and the last one twice. The second one replaces the first in several steps,
// each of which may fail.
TEST_F(CheckpointFaultsTest, NoneIsLostWhereFoldersCannotBeExchanged) {
  setenv("LATHE_NO_EXCHANGE", "1", 1);
  int faults = 0;
  for (int call = 1;; ++call) {
    fs::remove(Path("mark"));
    fs::remove_all(Path("out"));
    const Fault fault("rename:" + std::to_string(call) + ":" + std::to_string(EIO), "checkpoint-",
                      Path("mark"));
    const RunResult result = Run(
        "out", {"--save_strategy", "epoch", "--save_seconds", "0.00001", "--save_total_limit", "1"},
        {},
        /*steps=*/3);
    EXPECT_EQ(result.exit_code, 0) << call << result.out << result.err;
    const CheckpointSearch search = FindNewestCheckpoint(Path("out"));
    EXPECT_TRUE(search.newest.has_value()) << call << result.out;
    EXPECT_TRUE(search.left_out.empty()) << call << search.left_out[0];
    if (!Exists("mark")) break;
    ++faults;
  }
  EXPECT_GT(faults, 3);
  unsetenv("LATHE_NO_EXCHANGE");
}

// Returns the steps of a log with the lowest evaluation loss so far, without the step `lost`.
std::vector<int64_t> BestSteps(const nlohmann::json& log, int64_t lost = -1) {
  std::vector<int64_t> steps;
  double lowest = 1e9;
  for (const nlohmann::json& entry : log) {
    if (!entry.contains("eval_loss") || entry["step"] == lost) continue;
    if (entry["eval_loss"].get<double>() >= lowest) continue;
    lowest = entry["eval_loss"];
    steps.push_back(entry["step"]);
  }
  return steps;
}

// The best model is lost to a full disk. The best one of those that are left takes its place, and
// every file and line says so.
TEST_F(CheckpointFaultsTest, ABestModelThatIsLostIsNotCalledTheBest) {
  const std::vector<std::string> options = TrainingArgs(
      "out", {"--num_threads", "1", "--disable_tqdm", "--max_steps", "40", "--learning_rate",
              "1e-3", "--eval_strategy", "steps", "--eval_steps", "8", "--save_strategy", "best",
              "--load_best_model_at_end", "--do_eval"});
  ASSERT_EQ(RunProgram("finetune", options).exit_code, 0);
  const nlohmann::json log = ReadJson("out/trainer_state.json").at("log_history");
  const int64_t lost = BestSteps(log).back();
  const std::vector<int64_t> left = BestSteps(log, lost);
  ASSERT_FALSE(left.empty());
  fs::remove_all(Path("out"));
  const Fault fault("fsync:1:" + std::to_string(ENOSPC), CheckpointName(lost), Path("mark"));
  const RunResult run = RunProgram("finetune", options);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_TRUE(Exists("mark"));
  std::vector<int64_t> steps;
  for (const NumberedFolder& folder : ListNumberedFolders(Path("out"), "checkpoint-"))
    steps.push_back(folder.number);
  EXPECT_EQ(steps, left);
  EXPECT_NE(run.out.find("warning: the best model, that of step " + std::to_string(lost) +
                         ", could not be saved; the model is that of step " +
                         std::to_string(left.back()) + "\n"),
            std::string::npos)
      << run.out;
  const nlohmann::json state = ReadJson("out/trainer_state.json");
  const std::string best = "out/" + CheckpointName(left.back());
  EXPECT_EQ(state.at("best_global_step"), left.back());
  EXPECT_EQ(state.at("best_model_checkpoint"), Path(best));
  EXPECT_EQ(Read("out/model.safetensors"), Read(best + "/model.safetensors"));
  EXPECT_EQ(ReadJson("out/eval_results.json").at("eval_loss"), state.at("best_metric"));
}

// The sync of the folder itself may fail, before or after a checkpoint has its name there.
TEST_F(CheckpointFaultsTest, AFolderThatFailsToSyncCostsNoOtherCheckpoint) {
  std::set<int> warned_of;
  int errors = 0;
  for (int call = 1;; ++call) {
    fs::remove(Path("mark"));
    fs::remove_all(Path("out"));
    const Fault fault("fsync:" + std::to_string(call) + ":" + std::to_string(EIO), "/out$",
                      Path("mark"));
    // The report lies in this folder, too, but its loss costs nothing.
    const RunResult result = Run("out", {"--save_steps", "3", "--no_report"});
    if (!Exists("mark")) break;
    for (const std::string& path : Acknowledged(result.out)) EXPECT_NO_THROW(OpenCheckpoint(path));
    EXPECT_EQ(FindNewestCheckpoint(Path("out")).left_out, std::vector<std::string>()) << call;
    if (result.exit_code != 0) {
      ExpectError(result, ": Input/output error");
      ++errors;
      continue;
    }
    if (result.out.find("warning: no model card was written: ") != std::string::npos) {
      EXPECT_EQ(Acknowledged(result.out).size(), 3u) << call << result.out;
      continue;
    }
    for (const int step : {3, 6, 9}) {
      const std::string warning = "warning: no checkpoint was saved after step " +
                                  std::to_string(step) + ": " + Path("out") +
                                  ": Input/output error";
      if (result.out.find(warning) != std::string::npos) warned_of.insert(step);
    }
    EXPECT_EQ(Acknowledged(result.out).size(), 2u) << call << result.out;
  }
  EXPECT_EQ(warned_of, (std::set<int>{3, 6, 9}));
  EXPECT_GT(errors, 0);  // of the model and other files
}

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
      const std::vector<std::string> all = Acknowledged(run.out);
      saved = all.empty() ? "" : all.back();
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
