// What happens when a process of a job is lost, hangs, or is asked to stop. LATHE_FAULT_ROUNDS says
// how often each fault is tried (once), and the log how long each job took to end.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>

#include "lathe/apps/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool WaitUntil(const std::function<bool()>& condition, double seconds = 30) {
  const Clock::time_point start = Clock::now();
  while (!condition()) {
    if (SecondsSince(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Whether the process is there and is no zombie.
bool IsAlive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const size_t end = text.rfind(") ");
  return end != std::string::npos && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

class FaultTest : public LaunchedTest {
 protected:
  static constexpr int kRanks = 3;

  static int Rounds() {
    const char* rounds = std::getenv("LATHE_FAULT_ROUNDS");
    return rounds == nullptr ? 1 : std::atoi(rounds);
  }

  struct Outcome {
    RunResult run;
    double seconds = 0;  // from the fault to the end of the launcher
  };

  // A long training in three ranks, always on the same port; `fault` comes once it has made steps.
  Outcome WithFault(
      const std::function<void(pid_t launcher, const std::vector<pid_t>& ranks)>& fault,
      const Args& more = {}) {
    std::filesystem::remove_all(Path("out"));
    for (int rank = 0; rank < kRanks; ++rank) std::filesystem::remove(Path(Name(rank)));
    Write("log", "");
    Args options = {"--max_steps", "1000000", "--per_device_train_batch_size", "2"};
    options.insert(options.end(), more.begin(), more.end());
    std::string script = "echo $$ $PPID > " + Path("") + "pid.$RANK; exec";
    for (const std::string& arg : Finetune("out", options)) script += " '" + arg + "'";
    Outcome outcome;
    std::thread job([&] {
      outcome.run = Launch(kRanks, {"sh", "-c", script}, {.stdout_path = Path("log")},
                           {"--main_process_port", std::to_string(port_)});
    });
    EXPECT_TRUE(WaitUntil([&] { return Read("log").find("step 5/") != std::string::npos; }));
    std::vector<pid_t> ranks;
    pid_t launcher = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      pid_t pid = 0;
      std::ifstream(Path(Name(rank))) >> pid >> launcher;
      ranks.push_back(pid);
    }
    const Clock::time_point start = Clock::now();
    fault(launcher, ranks);
    job.join();
    outcome.seconds = SecondsSince(start);
    for (const pid_t rank : ranks)
      EXPECT_TRUE(WaitUntil([&] { return !IsAlive(rank); }, 5)) << "process " << rank << " stays";
    return outcome;
  }
  static std::string Name(int rank) { return "pid." + std::to_string(rank); }

  void Report(const std::string& fault, double seconds) const {
    std::cout << fault << ": over after " << seconds << " s\n";
  }

  int port_ = 20000 + getpid() % 20000;
};

TEST_F(FaultTest, AKilledRankEndsTheJob) {
  for (int round = 0; round < Rounds(); ++round) {
    for (int victim = 0; victim < kRanks; ++victim) {
      const Outcome outcome =
          WithFault([&](pid_t, const std::vector<pid_t>& ranks) { kill(ranks[victim], SIGKILL); });
      Report("rank " + std::to_string(victim) + " killed", outcome.seconds);
      EXPECT_EQ(outcome.run.exit_code, 128 + SIGKILL) << outcome.run.err;
      EXPECT_LT(outcome.seconds, 10);
      const std::string name = "rank " + std::to_string(victim);
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == victim) continue;
        EXPECT_NE(outcome.run.err.find("rank " + std::to_string(rank) + " can't go on: " + name +
                                       " has ended"),
                  std::string::npos)
            << outcome.run.err;
      }
      // The first of those that are left saves.
      const std::string saved =
          outcome.run.err.substr(0, outcome.run.err.find("the model after step "));
      EXPECT_LT(saved.size(), outcome.run.err.size()) << outcome.run.err;
      EXPECT_EQ(saved.substr(saved.rfind('\n') + 1).starts_with("rank 1: hint: "), victim == 0)
          << outcome.run.err;
      EXPECT_TRUE(Exists("out/model.safetensors"));
      // Mostly the last whole one; an earlier one if the rank was lost in the midst of an update.
      EXPECT_EQ(ReadJson("out/trainer_state.json")["global_step"],
                std::stoi(outcome.run.err.substr(saved.size() + strlen("the model after step "))));
    }
  }
}

TEST_F(FaultTest, AHangingRankEndsTheJobAfterTheTimeout) {
  for (int round = 0; round < Rounds(); ++round) {
    for (const int victim : {0, 2}) {
      const Outcome outcome =
          WithFault([&](pid_t, const std::vector<pid_t>& ranks) { kill(ranks[victim], SIGSTOP); },
                    {"--ddp_timeout", "2"});
      Report("rank " + std::to_string(victim) + " stopped, timeout 2 s", outcome.seconds);
      EXPECT_EQ(outcome.run.exit_code, 1) << outcome.run.err;
      EXPECT_GE(outcome.seconds, 2);
      EXPECT_LT(outcome.seconds, 25);
      EXPECT_NE(outcome.run.err.find("rank 1 can't go on: rank " + std::to_string(victim) +
                                     " does not answer"),
                std::string::npos)
          << outcome.run.err;
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

TEST_F(FaultTest, RanksDieWithTheLauncher) {
  for (int round = 0; round < Rounds(); ++round) {
    double gone = 0;
    const Outcome outcome = WithFault([&](pid_t launcher, const std::vector<pid_t>& ranks) {
      const Clock::time_point start = Clock::now();
      kill(launcher, SIGKILL);
      EXPECT_TRUE(WaitUntil([&] { return std::none_of(ranks.begin(), ranks.end(), IsAlive); }, 10));
      gone = SecondsSince(start);
    });
    Report("launcher killed", gone);
    EXPECT_EQ(outcome.run.exit_code, 128 + SIGKILL);
  }
}

TEST_F(FaultTest, SignalsStopAllAfterOneStepAndSaveOnce) {
  for (int round = 0; round < Rounds(); ++round) {
    for (const int signal_number : {SIGINT, SIGTERM}) {
      const Outcome outcome = WithFault(
          [&](pid_t launcher, const std::vector<pid_t>&) { kill(launcher, signal_number); });
      Report("signal " + std::to_string(signal_number), outcome.seconds);
      EXPECT_EQ(outcome.run.exit_code, 128 + signal_number) << outcome.run.err;
      const std::string log = Read("log");
      const size_t said = log.find("interrupted after step ");
      ASSERT_NE(said, std::string::npos) << log;
      EXPECT_EQ(said, log.rfind("interrupted after step "));
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

}  // namespace
}  // namespace lathe
