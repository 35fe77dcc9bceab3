// Tests what happens if a rank is lost, hangs or is told to end while the others are in no call
// that needs it. They evaluate their shares, accumulate gradients, or the main process reads its
// files. LATHE_FAULT_ROUNDS says how often each fault is tried (once by default).
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

constexpr int kTimeout = 3, kStart = 90;  // seconds

class LoneWorkTest : public LaunchedTest {
 protected:
  // Runs two ranks and sends the signal to rank `victim` once `ready` holds. Returns what the
  // launcher says, and the seconds until the other rank has ended.
  std::pair<RunResult, double> Lose(int victim, int signal_number, const Args& options,
                                    const std::function<bool()>& ready) {
    std::filesystem::remove_all(Path("out"));
    for (const char* rank : {"0", "1"}) std::filesystem::remove(Path(std::string("pid.") + rank));
    Write("log", "");
    Args args = {"--ddp_timeout", std::to_string(kTimeout)};
    args.insert(args.end(), options.begin(), options.end());
    std::string script = "echo $$ > " + Path("pid.") + "$RANK; exec";
    for (const std::string& arg : Finetune("out", args)) script += " '" + arg + "'";
    RunResult run;
    std::thread job([&] { run = Launch(2, {"sh", "-c", script}, {.stdout_path = Path("log")}); });
    const bool in_time = WaitUntil(ready, kStart);
    EXPECT_TRUE(in_time) << Read("log");
    const pid_t other = PidOf(1 - victim), lost = PidOf(victim);
    const Clock::time_point start = Clock::now();
    if (lost > 0) kill(lost, in_time ? signal_number : SIGKILL);
    while (other > 0 && kill(other, 0) == 0 && SecondsSince(start) < 60) Sleep();
    const double seconds = SecondsSince(start);
    job.join();
    std::cout << "signal " << signal_number << " to rank " << victim << ": " << seconds << " s\n";
    return {run, seconds};
  }

  // Returns the process id of the rank; 0, and a failed test, if it doesn't start.
  pid_t PidOf(int rank) const {
    pid_t pid = 0;
    const std::string name = "pid." + std::to_string(rank);
    EXPECT_TRUE(WaitUntil([&] { return bool(std::ifstream(Path(name)) >> pid); }, kStart)) << name;
    return pid;
  }
  static void Sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }
  static double SecondsSince(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // Returns the victims and the signals that they get, in all rounds.
  static std::vector<std::pair<int, int>> Cases(std::initializer_list<int> signals) {
    std::vector<std::pair<int, int>> cases;
    for (int round = 0; round < FaultRounds(); ++round) {
      for (const int victim : {0, 1}) {
        for (const int signal_number : signals) cases.emplace_back(victim, signal_number);
      }
    }
    return cases;
  }

  bool Evaluates() const {
    if (Read("log").find("train_runtime") == std::string::npos) return false;
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the ranks compare the data first
    return true;
  }

  // Makes the file so long that the test can't go through all its sentences.
  void MakeLong(const std::string& name) const {
    std::string table = Read(name);
    const std::string header = table.substr(0, table.find('\n') + 1);
    table.erase(0, header.size());
    for (int i = 0; i < 13; ++i) table += table;
    Write(name, header + table);
  }
};

TEST_F(LoneWorkTest, EvaluationEndsWithARankThatIsLost) {
  MakeLong("dev.csv");
  const Args options = {"--do_eval", "--per_device_eval_batch_size", "1", "--max_steps", "3"};
  const auto evaluates = [this] { return Evaluates(); };
  for (const auto& [victim, signal_number] : Cases({SIGKILL, SIGSTOP})) {
    const auto [run, seconds] = Lose(victim, signal_number, options, evaluates);
    const bool killed = signal_number == SIGKILL;
    EXPECT_EQ(run.exit_code, killed ? 128 + SIGKILL : 75) << run.err;
    const std::string lost = "rank " + std::to_string(victim);
    EXPECT_NE(run.err.find("] rank " + std::to_string(1 - victim) + " can't go on: " + lost +
                           (killed ? " has ended" : " does not answer") +
                           (victim == 0 ? "; this rank was evaluating" : " while evaluating")),
              std::string::npos)
        << run.err;
    EXPECT_NE(run.err.find("; the trained model is in " + Path("out") + "\n"), std::string::npos)
        << run.err;
    EXPECT_TRUE(Exists("out/model.safetensors"));
    EXPECT_LT(seconds, killed ? 2 : kTimeout + 3);
  }
}

// A signal to one rank ends the evaluation on all ranks.
TEST_F(LoneWorkTest, EvaluationEndsWhereOneRankIsToldTo) {
  MakeLong("dev.csv");
  for (const auto& [asked, signal_number] : Cases({SIGHUP, SIGTERM})) {
    const auto [run, seconds] =
        Lose(asked, signal_number,
             {"--do_eval", "--per_device_eval_batch_size", "1", "--max_steps", "3"},
             [this] { return Evaluates(); });
    EXPECT_EQ(run.exit_code, 128 + signal_number) << run.err;
    EXPECT_NE(Read("log").find("interrupted; the trained model is in " + Path("out") + "\n"),
              std::string::npos);
    EXPECT_LT(seconds, 2);
  }
}

// Rank 1 gets a signal but can't tell rank 0, which hangs. So it reports rank 0.
TEST_F(LoneWorkTest, ASignalInAnEvaluationWithoutRank0) {
  MakeLong("dev.csv");
  const auto [run, seconds] = Lose(
      0, SIGSTOP, {"--do_eval", "--per_device_eval_batch_size", "1", "--max_steps", "3"}, [this] {
        if (!Evaluates()) return false;
        kill(PidOf(0), SIGSTOP);
        kill(PidOf(1), SIGTERM);
        return true;
      });
  EXPECT_EQ(run.exit_code, 75) << run.err;
  EXPECT_NE(run.err.find(" rank 1 can't go on: rank 0 does not answer; this rank was evaluating\n"),
            std::string::npos)
      << run.err;
  EXPECT_NE(run.err.find("; the trained model is in " + Path("out") + "\n"), std::string::npos)
      << run.err;
  EXPECT_LT(seconds, kTimeout + 3);
}

// If a rank is lost in an evaluation between training steps, the remaining rank saves the model.
TEST_F(LoneWorkTest, SoDoesOneInTheMidstOfTraining) {
  MakeLong("dev.csv");
  for (int round = 0; round < FaultRounds(); ++round) {
    const auto [run, seconds] =
        Lose(1, SIGKILL,
             {"--eval_strategy", "steps", "--eval_steps", "3", "--per_device_eval_batch_size", "1",
              "--max_steps", "6"},
             [this] { return Read("log").find("step 3/") != std::string::npos; });
    EXPECT_EQ(run.exit_code, 128 + SIGKILL) << run.err;
    EXPECT_NE(run.err.find("; the model after step 3 is in " + Path("out")), std::string::npos)
        << run.err;
    EXPECT_LT(seconds, 2);
  }
}

// A rank that accumulates gradients needs no other rank for a long time.
TEST_F(LoneWorkTest, AccumulationEndsWithARankThatIsLost) {
  MakeLong("train.csv");
  for (const auto& [victim, signal_number] : Cases({SIGKILL})) {
    const auto [run, seconds] =
        Lose(victim, signal_number,
             {"--gradient_accumulation_steps", "1000000", "--num_train_epochs", "1",
              "--per_device_train_batch_size", "1"},
             [this] {
               if (Read("log").find("steps ") == std::string::npos) return false;
               std::this_thread::sleep_for(std::chrono::seconds(1));
               return true;
             });
    EXPECT_EQ(run.exit_code, 128 + SIGKILL) << run.err;
    EXPECT_LT(seconds, 2);
  }
}

// Rank 0 waits for a file that doesn't come, and rank 1 waits for rank 0.
TEST_F(LoneWorkTest, ReadingEndsWithARankThatIsLost) {
  ASSERT_EQ(mkfifo(Path("pipe.csv").c_str(), 0600), 0);
  const Args options = {"--train_file", Path("pipe.csv"), "--max_steps", "3"};
  const auto reads = [this] {
    if (PidOf(0) == 0 || PidOf(1) == 0) return false;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return true;
  };
  for (const auto& [victim, signal_number] : Cases({SIGKILL, SIGSTOP})) {
    const auto [run, seconds] = Lose(victim, signal_number, options, reads);
    const bool killed = signal_number == SIGKILL;
    EXPECT_EQ(run.exit_code, killed ? 128 + SIGKILL : 75) << run.err;
    EXPECT_NE(run.err.find("rank " + std::to_string(1 - victim) + " can't go on: rank " +
                           std::to_string(victim) + (killed ? " has ended" : " does not answer") +
                           (victim == 0 ? "; this rank was reading data" : " while reading data")),
              std::string::npos)
        << run.err;
    EXPECT_LT(seconds, killed ? 2 : kTimeout + 3);
  }
}

}  // namespace
}  // namespace lathe
