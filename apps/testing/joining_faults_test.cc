// Tests what happens if a rank is lost or told to end before all have joined, or before the data is
// read. LATHE_FAULT_ROUNDS says how often each fault is tried (once by default).
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <regex>
#include <thread>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

constexpr char kNothingDone[] = "interrupted before the first step; nothing was written\n";

// Returns true once the program handles SIGTERM itself.
bool HandlesSigterm(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return std::stoull(line.substr(7), nullptr, 16) >> 14 & 1;
  }
  return false;
}

std::string Name(int signal_number) { return signal_number == SIGINT ? "Interrupt" : "Terminated"; }

class JoiningFaultTest : public LaunchedTest {
 protected:
  // Returns the process id of the rank's shell, which its program keeps.
  pid_t PidOf(int rank) const { return Numbers(rank).first; }
  pid_t Launcher() const { return Numbers(0).second; }

  // Launches `before; exec finetune` in `num_processes` ranks, and calls `fault` once `rank` waits.
  // Returns how the job ended, and how many seconds after the fault.
  std::pair<RunResult, double> WithFault(int num_processes, const std::string& before, int rank,
                                         const std::function<void()>& fault,
                                         const Args& launch_options = {}, const Args& more = {}) {
    for (int r = 0; r < num_processes; ++r) std::filesystem::remove(Path(PidFile(r)));
    std::string script = "echo $$ $PPID > " + Path("pid.") + "$RANK; " + before + "; exec";
    for (const std::string& arg : Finetune("out", more)) script += " '" + arg + "'";
    RunResult run;
    std::thread job([&] { run = Launch(num_processes, {"sh", "-c", script}, {}, launch_options); });
    EXPECT_TRUE(WaitUntil([&] { return HandlesSigterm(PidOf(rank)); }));
    Pause();  // by its end the rank waits
    const TestClock::time_point start = TestClock::now();
    fault();
    job.join();
    const double seconds = SecondsSince(start);
    std::cout << "over after " << seconds << " s\n";
    return {run, seconds};
  }

  static void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(700)); }
  static std::string PidFile(int rank) { return "pid." + std::to_string(rank); }

 private:
  std::pair<pid_t, pid_t> Numbers(int rank) const {
    pid_t own = 0, launcher = 0;
    EXPECT_TRUE(
        WaitUntil([&] { return bool(std::ifstream(Path(PidFile(rank))) >> own >> launcher); }));
    return {own, launcher};
  }
};

std::string WithoutProcesses(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\(process \d+\) )"), "");
}

// The job has two machines, and the other one never comes. Rank 0 waits for ranks to join, rank 1
// for rank 0.
TEST_F(JoiningFaultTest, ASignalEndsARankThatWaitsForOthers) {
  const std::string port = std::to_string(TestPort());
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int rank : {0, 1}) {
      for (const int signal_number : {SIGINT, SIGTERM}) {
        const auto [run, seconds] =
            WithFault(2, "true", rank, [&] { kill(PidOf(rank), signal_number); },
                      {"--num_machines", "2", "--machine_rank", std::to_string(rank),
                       "--main_process_ip", "127.0.0.1", "--main_process_port", port});
        const std::string code = std::to_string(128 + signal_number);
        EXPECT_EQ(run.exit_code, 128 + signal_number);
        EXPECT_EQ(run.out, kNothingDone);
        EXPECT_EQ(WithoutProcesses(run.err),
                  "lathe launch: rank " + std::to_string(rank) + " ended with exit code " + code +
                      ", as told by signal " + std::to_string(signal_number) + " (" +
                      Name(signal_number) + ")\n");
        EXPECT_FALSE(Exists("out"));
        EXPECT_LT(seconds, 2);
      }
    }
  }
}

TEST_F(JoiningFaultTest, ASignalToTheLauncherEndsAll) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int signal_number : {SIGINT, SIGTERM}) {
      const auto [run, seconds] = WithFault(3, "test $RANK = 2 && exec sleep 99", 0,
                                            [&] { kill(Launcher(), signal_number); });
      EXPECT_EQ(run.exit_code, 128 + signal_number);
      EXPECT_EQ(run.out, kNothingDone);
      EXPECT_EQ(run.err, "");
      EXPECT_FALSE(Exists("out"));
      EXPECT_LT(seconds, 2);
    }
  }
}

TEST_F(JoiningFaultTest, ARankThatIsKilledWhileAnotherIsLateIsNamed) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int victim : {0, 1}) {
      const int other = 1 - victim;
      const auto [run, seconds] = WithFault(3, "test $RANK = 2 && exec sleep 99", victim, [&] {
        EXPECT_TRUE(WaitUntil([&] { return HandlesSigterm(PidOf(other)); }));
        Pause();
        const pid_t process = PidOf(other);
        kill(PidOf(victim), SIGKILL);
        EXPECT_TRUE(WaitUntil([&] { return !IsAlive(process); }, 2));
      });
      EXPECT_EQ(run.exit_code, 128 + SIGKILL);
      const std::string lost = "rank " + std::to_string(victim);
      const std::string prefix = other == 0 ? "" : "rank 1: ";
      EXPECT_TRUE(run.err.find(prefix + "error: [joining] rank " + std::to_string(other) +
                               " can't go on: " + lost + " has ended before all had joined\n") !=
                  std::string::npos)
          << run.err;
      EXPECT_TRUE(WithoutProcesses(run.err).ends_with("lathe launch: the job failed because " +
                                                      lost + " was killed by signal 9 (Killed)\n"))
          << run.err;
      EXPECT_LT(seconds, 8);  // the launcher gives the late rank 5 s to notice
    }
  }
}

// Only the launcher knows that the rank has ended, and it tells the rank that waits.
TEST_F(JoiningFaultTest, ARankThatEndsBeforeItJoinsEndsTheJob) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int victim : {0, 1}) {
      for (const int code : {7, 0}) {
        const std::string rank = std::to_string(victim), other = std::to_string(1 - victim);
        const auto [run, seconds] =
            WithFault(2, "test $RANK = " + rank + " && sleep 2 && exit " + std::to_string(code),
                      1 - victim, [] {});
        EXPECT_EQ(run.out, "");
        EXPECT_LT(seconds, 2 + 2);
        EXPECT_EQ(run.exit_code, code == 0 ? 75 : code);
        const std::string prefix = victim == 1 ? "" : "rank 1: ";
        const std::string launcher =
            code == 0 ? other + " ended with exit code 75, because it has lost another rank"
                      : rank + " ended with exit code 7";
        // A rank that fails has told why, so the other one says nothing.
        const std::string told = prefix + "error: [joining] rank " + other + " can't go on: rank " +
                                 rank + " has ended before all had joined\n" + prefix +
                                 "hint: look at what that rank printed last, and start all ranks "
                                 "again\n";
        EXPECT_EQ(WithoutProcesses(run.err),
                  (code == 0 ? told : "") + "lathe launch: rank " + launcher + "\n");
      }
    }
  }
}

// Rank 0 waits for a file that doesn't come, and rank 1 waits for rank 0.
TEST_F(JoiningFaultTest, ASignalEndsTheReadingOfData) {
  ASSERT_EQ(mkfifo(Path("pipe.csv").c_str(), 0600), 0);
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int num_processes : {1, 2}) {
      for (const int signal_number : {SIGINT, SIGTERM}) {
        const auto [run, seconds] =
            WithFault(num_processes, "true", 0,
                      [&] {
                        EXPECT_TRUE(WaitUntil([&] { return Exists("out"); }));
                        Pause();
                        kill(Launcher(), signal_number);
                      },
                      {}, {"--train_file", Path("pipe.csv")});
        EXPECT_EQ(run.exit_code, 128 + signal_number);
        EXPECT_EQ(run.out, kNothingDone);
        EXPECT_EQ(run.err, "");
        EXPECT_FALSE(Exists("out"));
        EXPECT_LT(seconds, 3);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
