// Tests what happens if a rank of a job is lost, hangs, or is asked to stop. LATHE_FAULT_ROUNDS
// says how often each fault is tried (once by default). The log says how long each job took to end.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>
#include <utility>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

// What a message says after the model, if there is no checkpoint.
constexpr char kNoCheckpoint[] =
    "; training can't go on from it: --save_steps saves checkpoints next time";

using Args = std::vector<std::string>;

class FaultTest : public LaunchedTest {
 protected:
  static constexpr int kRanks = 3;

  struct Outcome {
    RunResult run;
    double seconds = 0;  // from the fault to the end of the launcher
  };

  // Runs a long training in three ranks, always on the same port, and calls `fault` after some
  // steps.
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
    const TestClock::time_point start = TestClock::now();
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

  int port_ = TestPort();
};

// Returns what the ranks and the launcher say, without what differs from run to run.
std::string WithoutNumbers(const std::string& text) {
  const std::pair<const char*, const char*> changes[] = {{"\\[[a-z_]+\\]", "[CALL]"},
                                                         {"after step \\d+", "after step N"},
                                                         {", perhaps with some param[^,]*,", ""},
                                                         {"process \\d+", "process N"}};
  std::string plain = text;
  for (const auto& [what, by] : changes) plain = std::regex_replace(plain, std::regex(what), by);
  return plain;
}

// Returns the lines in sorted order, because processes may print in any order.
std::string Sorted(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line + '\n');
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

TEST_F(FaultTest, AKilledRankEndsTheJob) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (int victim = 0; victim < kRanks; ++victim) {
      const Outcome outcome =
          WithFault([&](pid_t, const std::vector<pid_t>& ranks) { kill(ranks[victim], SIGKILL); });
      Report("rank " + std::to_string(victim) + " killed", outcome.seconds);
      EXPECT_EQ(outcome.run.exit_code, 128 + SIGKILL) << outcome.run.err;
      EXPECT_LT(outcome.seconds, 2);
      // The lowest remaining rank saves and reports. The last line names the cause.
      const std::string prefix = victim == 0 ? "rank 1: " : "";
      const std::string expected =
          prefix + "error: [CALL] rank " + (victim == 0 ? "1" : "0") + " can't go on: rank " +
          std::to_string(victim) + " has ended" +
          (victim == 0 ? "; this rank was training" : " while training") + "\n" + prefix +
          "hint: look at what that rank printed last; the model after step N is in " + Path("out") +
          kNoCheckpoint + "\nlathe launch: rank " + std::to_string(victim) +
          " (process N) was killed by signal 9 (Killed)\n";
      EXPECT_EQ(WithoutNumbers(outcome.run.err), expected);
      EXPECT_TRUE(Exists("out/model.safetensors"));
      // The model is usually that of the last complete step. If the rank was lost during an update,
      // it may be an earlier one, or hold some parameters of the next step.
      const size_t step = outcome.run.err.find("after step ") + strlen("after step ");
      EXPECT_EQ(ReadJson("out/trainer_state.json")["global_step"],
                std::stoi(outcome.run.err.substr(step)));
    }
  }
}

// If two of three ranks are killed together, the remaining one saves.
TEST_F(FaultTest, TwoThatAreKilledTogether) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const auto& [first, second] : {std::pair(0, 1), {1, 0}, {2, 0}}) {
      const Outcome outcome =
          WithFault([&, first = first, second = second](pid_t, const std::vector<pid_t>& ranks) {
            kill(ranks[first], SIGKILL);
            kill(ranks[second], SIGKILL);
          });
      Report("ranks " + std::to_string(first) + " and " + std::to_string(second) + " killed",
             outcome.seconds);
      EXPECT_EQ(outcome.run.exit_code, 128 + SIGKILL) << outcome.run.err;
      EXPECT_LT(outcome.seconds, 2);
      EXPECT_NE(outcome.run.err.find("is in " + Path("out") + kNoCheckpoint + "\n"),
                std::string::npos)
          << outcome.run.err;
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

// If the model can't be saved, no rank goes on as if it were.
TEST_F(FaultTest, AModelThatCannotBeSaved) {
  const RunResult run =
      Launch(2, Finetune("out", {"--do_eval", "--max_steps", "3"}), {.max_file_bytes = 20000});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.err.find("File too large"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find(" is in " + Path("out")), std::string::npos) << run.err;
  EXPECT_EQ(run.out.find("eval_loss"), std::string::npos) << run.out;
  EXPECT_FALSE(Exists("out/model.safetensors"));
}

// The main process is killed at various moments of its last save. The folder then holds a complete
// model of the last step.
TEST_F(FaultTest, TheMainProcessIsKilledAsItSaves) {
  const Args options = {"--max_steps", "6"};
  ASSERT_EQ(Launch(kRanks, Finetune("untouched", options)).exit_code, 0);
  std::string script = "test $RANK = 0 && echo $$ > " + Path("pid.0") + "; exec";
  for (const std::string& arg : Finetune("out", options)) script += " '" + arg + "'";
  int times_killed = 0;
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int delay : {0, 1, 2, 3, 4, 6}) {  // milliseconds
      std::filesystem::remove_all(Path("out"));
      Write("pid.0", "");
      std::atomic<bool> ended = false;
      std::thread killer([&] {
        pid_t main = 0;
        while (!ended && !(std::ifstream(Path("pid.0")) >> main)) usleep(1000);
        while (!ended && !Exists("out/.partial." + std::to_string(main) + "/new")) usleep(100);
        usleep(1000 * delay);
        if (!ended) kill(main, SIGKILL);
      });
      const RunResult run = Launch(kRanks, {"sh", "-c", script});
      ended = true;
      killer.join();
      const bool killed = run.exit_code == 128 + SIGKILL;
      times_killed += killed ? 1 : 0;
      EXPECT_TRUE(killed || run.exit_code == 0) << run.err;
      for (const char* file :
           {"model.safetensors", "config.json", "vocab.txt", "data_columns.json"})
        EXPECT_EQ(Read("out/" + std::string(file)), Read("untouched/" + std::string(file)))
            << file << " after " << delay << " ms\n"
            << run.err;
      EXPECT_EQ(ReadJson("out/trainer_state.json")["global_step"], 6);
    }
  }
  EXPECT_GT(times_killed, 0);
}

TEST_F(FaultTest, AHangingRankEndsTheJobAfterTheTimeout) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int victim : {0, 2}) {
      double others = 0;  // seconds until they have ended
      const Outcome outcome = WithFault(
          [&](pid_t, std::vector<pid_t> ranks) {
            const TestClock::time_point start = TestClock::now();
            kill(ranks[victim], SIGSTOP);
            ranks.erase(ranks.begin() + victim);
            EXPECT_TRUE(
                WaitUntil([&] { return std::none_of(ranks.begin(), ranks.end(), IsAlive); }));
            others = SecondsSince(start);
          },
          {"--ddp_timeout", "2"});
      Report("rank " + std::to_string(victim) + " stopped, timeout 2 s: the others", others);
      Report("rank " + std::to_string(victim) + " stopped, and killed", outcome.seconds);
      EXPECT_EQ(outcome.run.exit_code, 75) << outcome.run.err;
      EXPECT_GE(others, 2);
      EXPECT_LT(others, 6);
      EXPECT_LT(outcome.seconds, 25);
      const std::string prefix = victim == 0 ? "rank 1: " : "";
      const std::string expected =
          prefix + "error: [CALL] rank " + (victim == 0 ? "1" : "0") + " can't go on: rank " +
          std::to_string(victim) + " does not answer" +
          (victim == 0 ? "; this rank was training" : " while training") + "\n" + prefix +
          "hint: look at what that rank printed last; the model after step N is in " + Path("out") +
          kNoCheckpoint + "\n" +
          "lathe launch: rank R (process N) ended with exit code 75, because it " +
          "has lost another rank; stopping the others\nlathe launch: rank " +
          std::to_string(victim) + " did not end within 5 s of being told to; it is killed\n";
      const std::regex who("launch: rank \\d \\(process N\\)");
      EXPECT_EQ(Sorted(std::regex_replace(WithoutNumbers(outcome.run.err), who,
                                          "launch: rank R (process N)")),
                Sorted(expected));
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

// If two of three ranks hang, the remaining one saves and reports.
TEST_F(FaultTest, TwoThatHangTogether) {
  for (int round = 0; round < FaultRounds(); ++round) {
    double other = 0;  // seconds until it has ended
    const Outcome outcome = WithFault(
        [&](pid_t, const std::vector<pid_t>& ranks) {
          const TestClock::time_point start = TestClock::now();
          for (const int victim : {0, 1}) kill(ranks[victim], SIGSTOP);
          // The launcher takes a killed rank for the cause if it finds both ended at once.
          EXPECT_TRUE(WaitUntil([&] { return IsReaped(ranks[2]); }));
          other = SecondsSince(start);
          for (const int victim : {0, 1}) kill(ranks[victim], SIGKILL);
        },
        {"--ddp_timeout", "2"});
    Report("ranks 0 and 1 stopped, timeout 2 s: the other", other);
    EXPECT_EQ(outcome.run.exit_code, 128 + SIGKILL) << outcome.run.err;
    EXPECT_GE(other, 2);
    EXPECT_LT(other, 15);
    for (const std::string& part : {std::string("rank 2: error: ["),
                                    std::string("rank 2 can't go on: rank 0 does not answer"),
                                    "is in " + Path("out") + kNoCheckpoint + "\n"}) {
      EXPECT_NE(outcome.run.err.find(part), std::string::npos) << outcome.run.err;
    }
    EXPECT_TRUE(Exists("out/model.safetensors"));
  }
}

// A rank that ends with an error of its own says why. The other ranks, which lose it, say nothing.
TEST_F(FaultTest, ARanksOwnErrorIsToldAlone) {
  std::string program;
  for (const std::string& arg : Finetune("out", {"--max_steps", "3"})) program += " '" + arg + "'";
  for (int round = 0; round < 2 * FaultRounds(); ++round) {
    const int victim = round % 2;
    const std::string rank = std::to_string(victim), none = Path("none");
    const std::string script = "echo $$ > " + Path("") + "pid.$RANK; test $RANK = " + rank +
                               " && set -- --config_name " + none + "; exec" + program + " \"$@\"";
    Write(Name(victim), "");
    RunResult run;
    std::thread job([&] { run = Launch(kRanks, {"sh", "-c", script}); });
    EXPECT_TRUE(WaitUntil([&] { return Read(Name(victim)).ends_with('\n'); }));
    const pid_t process = std::atoi(Read(Name(victim)).c_str());
    EXPECT_TRUE(WaitUntil([&] { return !IsAlive(process); }));
    const TestClock::time_point failed = TestClock::now();
    job.join();
    const double seconds = SecondsSince(failed);
    Report("rank " + rank + " failed", seconds);
    EXPECT_LT(seconds, 2);
    EXPECT_EQ(run.exit_code, 1) << run.err;
    const std::string prefix = victim == 0 ? "" : "rank 1: ";
    EXPECT_EQ(WithoutNumbers(run.err),
              prefix + "error: " + none + ": no such folder (--config_name)\n" + prefix +
                  "hint: give a folder's path, or the name of a model on the Hub as owner/name\n" +
                  "lathe launch: rank " + rank + " (process N) ended with exit code 1\n");
  }
}

// The example loop doesn't say what it does, and messages still say "while training". The
// launcher's --timeout says how long a rank may hang.
TEST_F(FaultTest, AKilledOrHangingRankOfTheExampleLoop) {
  ASSERT_EQ(Launch(1, Finetune("start", {"--max_steps", "1"})).exit_code, 0);
  const std::string table = Read("train.csv");
  const size_t header = table.find('\n') + 1;
  std::string longer = table.substr(0, header);
  for (int i = 0; i < 1000; ++i) longer += table.substr(header);
  Write("long.csv", longer);
  const std::string script = "echo $$ > " + Path("") + "pid.$RANK; exec examples/training_loop " +
                             Path("start") + " " + Path("long.csv") + " " + Path("dev.csv") + " " +
                             Path("loop");
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const bool hangs : {false, true}) {
      Write("log", "");
      RunResult run;
      std::thread job([&] {
        run = Launch(2, {"sh", "-c", script}, {.stdout_path = Path("log")},
                     hangs ? Args{"--timeout", "5"} : Args{});
      });
      EXPECT_TRUE(WaitUntil([&] { return Read("log").find("epoch 1") != std::string::npos; }, 120));
      // The fault comes in the midst of the second epoch.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const pid_t other = std::stoi(Read(Name(0))), victim = std::stoi(Read(Name(1)));
      const TestClock::time_point start = TestClock::now();
      kill(victim, hangs ? SIGSTOP : SIGKILL);
      // The launcher takes a killed rank for the cause if it finds both ended at once.
      EXPECT_TRUE(WaitUntil([&] { return IsReaped(other); }, 20));
      const double seconds = SecondsSince(start);
      kill(victim, SIGKILL);
      job.join();
      Report(std::string("rank 1 of the example loop ") + (hangs ? "stopped" : "killed"), seconds);
      EXPECT_LT(seconds, hangs ? 5 + 4 : 2);
      EXPECT_EQ(run.exit_code, hangs ? 1 : 128 + SIGKILL) << run.err;
      const std::string what = hangs ? "does not answer" : "has ended";
      EXPECT_NE(run.err.find("rank 0 can't go on: rank 1 " + what + " while training\n"),
                std::string::npos)
          << run.err;
    }
  }
}

TEST_F(FaultTest, TheLauncherSaysHowLongARankMayBeLate) {
  ASSERT_EQ(Launch(1, Finetune("start", {"--max_steps", "1"})).exit_code, 0);
  const std::string script = "echo $$ > " + Path("") +
                             "pid.$RANK; test $RANK = 1 && kill -STOP $$; exec "
                             "examples/training_loop " +
                             Path("start") + " " + Path("train.csv") + " " + Path("dev.csv") + " " +
                             Path("loop");
  const TestClock::time_point start = TestClock::now();
  const RunResult run = Launch(2, {"sh", "-c", script}, {}, {"--timeout", "2"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.err.find("error: rank 1 did not join within 2 s\n"), std::string::npos) << run.err;
  EXPECT_LT(SecondsSince(start), 2 + 10 + 2);  // until the launcher has killed rank 1
}

TEST_F(FaultTest, RanksDieWithTheLauncher) {
  for (int round = 0; round < FaultRounds(); ++round) {
    double gone = 0;
    const Outcome outcome = WithFault([&](pid_t launcher, const std::vector<pid_t>& ranks) {
      const TestClock::time_point start = TestClock::now();
      kill(launcher, SIGKILL);
      EXPECT_TRUE(WaitUntil([&] { return std::none_of(ranks.begin(), ranks.end(), IsAlive); }, 10));
      gone = SecondsSince(start);
    });
    Report("launcher killed", gone);
    EXPECT_EQ(outcome.run.exit_code, 128 + SIGKILL);
  }
}

// A signal to one rank ends all ranks.
TEST_F(FaultTest, ASignalToOneRankStopsAll) {
  for (int round = 0; round < FaultRounds(); ++round) {
    const Outcome outcome =
        WithFault([](pid_t, const std::vector<pid_t>& ranks) { kill(ranks[1], SIGHUP); });
    Report("signal 1 to one rank", outcome.seconds);
    EXPECT_EQ(outcome.run.exit_code, 128 + SIGHUP);
    EXPECT_TRUE(Exists("out/model.safetensors"));
    EXPECT_EQ(std::regex_replace(WithoutNumbers(outcome.run.err), std::regex("rank \\d"), "rank R"),
              "lathe launch: rank R (process N) ended with exit code 129, as told by signal 1 "
              "(Hangup)\n");
  }
}

TEST_F(FaultTest, SignalsStopAllAfterOneStepAndSaveOnce) {
  for (int round = 0; round < FaultRounds(); ++round) {
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
