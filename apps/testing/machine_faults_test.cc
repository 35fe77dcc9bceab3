// Tests faults of jobs on two and on four machines of two processes each. No launcher and no rank
// may stay, one rank of each machine tells what has happened, and the model is saved.
// LATHE_FAULT_ROUNDS says how often each fault is tried (once by default). The log says how long
// each job took to end.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "lathe/apps/testing/machines.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Ready = std::function<bool()>;

constexpr int kTimeout = 3;          // seconds, of calls and of signs of life
constexpr double kAtOnce = 5;        // seconds, with up to 12 processes on few cores
constexpr double kUntilKilled = 10;  // until a launcher has killed a rank that hangs

class MachineFaults : public Machines, public testing::WithParamInterface<int> {
 protected:
  MachineFaults() : Machines(GetParam()) {}

  struct Outcome {
    std::vector<int> codes;  // of the launchers
    double seconds = 0;      // from the fault until all launchers have ended
    std::string errors;      // what all have said
  };

  // Trains and calls `fault` once `ready` holds.
  Outcome WithFault(const std::string& name, const std::function<void()>& fault,
                    const Args& options, const Ready& ready) {
    std::filesystem::remove_all(Path("out"));
    for (int rank = 0; rank < num_processes_; ++rank) Write(FileOf(rank), "");
    for (int machine = 0; machine < num_machines_; ++machine)
      Write("out." + std::to_string(machine), "");
    Args all = {"--ddp_timeout", std::to_string(kTimeout)};
    all.insert(all.end(), options.begin(), options.end());
    std::string script = "echo $$ > " + Path("pid.$RANK") + "; exec";
    for (const std::string& arg : Finetune("out", all)) script += " '" + arg + "'";
    Write("rank.sh", script);
    TestClock::time_point start;
    Outcome outcome;
    outcome.codes = RunOnAll({"sh", Path("rank.sh")}, [&] {
      EXPECT_TRUE(WaitUntil(ready, 120)) << Read("out.0") << ErrorsOfAll();
      start = TestClock::now();
      fault();
    });
    outcome.seconds = SecondsSince(start);
    outcome.errors = ErrorsOfAll();
    for (int rank = 0; rank < num_processes_; ++rank)
      EXPECT_TRUE(WaitUntil([&] { return !IsAlive(ProcessOf(rank)); }, 5)) << rank << " stays";
    std::cout << num_machines_ << " machines, " << name << ": over after " << outcome.seconds
              << " s\n";
    return outcome;
  }
  Outcome InTraining(const std::string& name, const std::function<void()>& fault,
                     const Args& more = {}) {
    Args options = {"--max_steps", "1000000", "--per_device_train_batch_size", "2"};
    options.insert(options.end(), more.begin(), more.end());
    return WithFault(name, fault, options, [this] { return Trains(); });
  }

  static std::string FileOf(int rank) { return "pid." + std::to_string(rank); }
  pid_t ProcessOf(int rank) const { return std::stoi(Read(FileOf(rank))); }
  static int MachineOf(int rank) { return rank / 2; }
  int last() const { return num_processes_ - 1; }
  void Signal(const std::vector<int>& ranks, int signal_number) const {
    for (const int rank : ranks) kill(ProcessOf(rank), signal_number);
  }

  // Expects that the launchers have ended with `code`, those of the ranks' machines with `own`.
  static void ExpectCodes(const Outcome& outcome, int code, const std::vector<int>& ranks,
                          int own) {
    std::vector<int> expected(outcome.codes.size(), code);
    for (const int rank : ranks) expected[static_cast<size_t>(MachineOf(rank))] = own;
    EXPECT_EQ(outcome.codes, expected) << outcome.errors;
  }
  // Expects that one rank of each machine reports, and names the lost rank. The machine `other`, if
  // given, has nothing to report.
  void ExpectReports(int lost, const std::string& how, int other = -1) const {
    for (int machine = 0; machine < num_machines_; ++machine) {
      const std::string errors = Read("err." + std::to_string(machine));
      if (machine == other) continue;
      const size_t report = errors.find("error: ");
      ASSERT_NE(report, std::string::npos) << machine << ": " << errors;
      EXPECT_EQ(errors.rfind("error: "), report) << machine << ": " << errors;
      EXPECT_NE(errors.find("can't go on: rank " + std::to_string(lost) + how, report),
                std::string::npos)
          << machine << ": " << errors;
    }
  }
  void ExpectSavedModel(const Outcome& outcome) const {
    EXPECT_TRUE(Exists("out/model.safetensors"));
    EXPECT_NE(outcome.errors.find("is in " + Path("out")), std::string::npos) << outcome.errors;
  }
};

INSTANTIATE_TEST_SUITE_P(Machines, MachineFaults, testing::Values(2, 4));

TEST_P(MachineFaults, AKilledRank) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int victim : {0, 1, last()}) {
      const Outcome outcome = InTraining("rank " + std::to_string(victim) + " killed",
                                         [&] { Signal({victim}, SIGKILL); });
      ExpectCodes(outcome, 75, {victim}, 128 + SIGKILL);
      EXPECT_LT(outcome.seconds, kAtOnce);
      ExpectReports(victim, " has ended");
      ExpectSavedModel(outcome);
    }
  }
}

TEST_P(MachineFaults, TwoThatAreKilledTogether) {
  for (int round = 0; round < FaultRounds(); ++round) {
    const Outcome outcome = InTraining("ranks 0 and the last killed", [&] {
      Signal({0, last()}, SIGKILL);
    });
    ExpectCodes(outcome, 75, {0, last()}, 128 + SIGKILL);
    EXPECT_LT(outcome.seconds, kAtOnce);
    ExpectSavedModel(outcome);
  }
}

TEST_P(MachineFaults, AHangingRank) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int victim : {0, last()}) {
      const Outcome outcome = InTraining("rank " + std::to_string(victim) + " stopped",
                                         [&] { Signal({victim}, SIGSTOP); });
      ExpectCodes(outcome, 75, {}, 0);
      EXPECT_GE(outcome.seconds, kTimeout);
      EXPECT_LT(outcome.seconds, kTimeout + kAtOnce + kUntilKilled);
      ExpectReports(victim, " does not answer");
      ExpectSavedModel(outcome);
    }
  }
}

TEST_P(MachineFaults, TwoThatHangTogether) {
  for (int round = 0; round < FaultRounds(); ++round) {
    const Outcome outcome = InTraining("ranks 0 and the last stopped", [&] {
      Signal({0, last()}, SIGSTOP);
    });
    ExpectCodes(outcome, 75, {}, 0);
    EXPECT_LT(outcome.seconds, 2 * kTimeout + kAtOnce + kUntilKilled);
    ExpectSavedModel(outcome);
  }
}

// The ranks evaluate their own shares, and are in no call that needs the others.
TEST_P(MachineFaults, ARankIsLostInAnEvaluation) {
  std::string table = Read("dev.csv");
  const std::string header = table.substr(0, table.find('\n') + 1);
  table.erase(0, header.size());
  for (int i = 0; i < 13; ++i) table += table;
  Write("dev.csv", header + table);
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int fault : {SIGKILL, SIGSTOP}) {
      const bool killed = fault == SIGKILL;
      const Outcome outcome = WithFault(
          std::string("the last rank ") + (killed ? "killed" : "stopped") + " in an evaluation",
          [&] { Signal({last()}, fault); },
          {"--do_eval", "--per_device_eval_batch_size", "1", "--max_steps", "3"},
          [this] {
            if (Read("out.0").find("train_runtime") == std::string::npos) return false;
            sleep(2);  // the ranks compare the data first
            return true;
          });
      ExpectCodes(outcome, 75, {last()}, killed ? 128 + SIGKILL : 75);
      EXPECT_LT(outcome.seconds, killed ? kAtOnce : kTimeout + kAtOnce + kUntilKilled);
      ExpectReports(last(), killed ? " has ended" : " does not answer");
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

// A rank that can't begin says why. Its machine tells no more, and the others name it.
TEST_P(MachineFaults, ARanksOwnErrorIsToldAlone) {
  const int machine = MachineOf(last());
  std::string program = "test $RANK = " + std::to_string(last()) + " && set -- --config_name " +
                        Path("none") + "; exec";
  for (const std::string& arg : Finetune("out", {"--max_steps", "3"})) program += " '" + arg + "'";
  Write("rank.sh", program + " \"$@\"");
  const std::vector<int> codes = RunOnAll({"sh", Path("rank.sh")});
  ExpectCodes({codes, 0, ErrorsOfAll()}, 75, {last()}, 1);
  ExpectReports(last(), " has ended", machine);
  const std::string errors = Read("err." + std::to_string(machine));
  const std::string prefix = "rank " + std::to_string(last()) + ": ";
  EXPECT_TRUE(errors.starts_with(prefix + "error: " + Path("none") +
                                 ": no such folder (--config_name)\n" + prefix + "hint: "))
      << errors;
  EXPECT_EQ(errors.rfind("error: "), prefix.size()) << errors;
}

TEST_P(MachineFaults, AWholeMachineIsLost) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int machine : {0, num_machines_ - 1}) {
      const Outcome outcome =
          InTraining("the launcher of machine " + std::to_string(machine) + " killed",
                     [&] { kill(LauncherOf(machine), SIGKILL); });
      ExpectCodes(outcome, 75, {2 * machine}, 128 + SIGKILL);
      EXPECT_LT(outcome.seconds, kAtOnce);
      ExpectSavedModel(outcome);
    }
  }
}

TEST_P(MachineFaults, ASignalEndsAllAndIsNoFault) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
      const Outcome outcome = InTraining("signal " + std::to_string(signal_number), [&] {
        // Ctrl-C comes to a launcher, and the others to one rank.
        if (signal_number == SIGINT)
          kill(LauncherOf(num_machines_ - 1), SIGINT);
        else
          Signal({last()}, signal_number);
      });
      ExpectCodes(outcome, 128 + signal_number, {}, 0);
      EXPECT_LT(outcome.seconds, kAtOnce);
      EXPECT_EQ(outcome.errors.find("error: "), std::string::npos) << outcome.errors;
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

// Calls may last for ten minutes, and yet the machine is missed after the limit of signs of life.
TEST_P(MachineFaults, AMachineThatIsCutOff) {
  if (network_ == nullptr) GTEST_SKIP() << "no network namespaces can be made here";
  for (int round = 0; round < FaultRounds(); ++round) {
    Shell("ip -n " + BridgedMachines::Name(num_machines_ - 1) + " link set card up");
    setenv("LATHE_HEARTBEAT_TIMEOUT", std::to_string(kTimeout).c_str(), 1);
    double noticed = 0;  // seconds
    const Outcome outcome = InTraining(
        "the last one cut off",
        [&] {
          EXPECT_TRUE(
              Shell("ip -n " + BridgedMachines::Name(num_machines_ - 1) + " link set card down"));
          const TestClock::time_point start = TestClock::now();
          const auto is_told = [&] { return ErrorsOfAll().find("error: ") != std::string::npos; };
          EXPECT_TRUE(WaitUntil(is_told, 60));
          noticed = SecondsSince(start);
        },
        {"--ddp_timeout", "600"});
    unsetenv("LATHE_HEARTBEAT_TIMEOUT");
    std::cout << num_machines_ << " machines: noticed after " << noticed << " s\n";
    EXPECT_LT(noticed, kTimeout + kAtOnce);
    ExpectCodes(outcome, 75, {}, 0);
    EXPECT_LT(outcome.seconds, 2 * kTimeout + 2 * kAtOnce);
    // Both sides miss the other one. The main process's side saves last or first; both may.
    EXPECT_NE(Read("err.0").find("rank 0 can't go on: rank "), std::string::npos) << outcome.errors;
    EXPECT_NE(Read("err." + std::to_string(num_machines_ - 1)).find("error: ["), std::string::npos)
        << outcome.errors;
    ExpectSavedModel(outcome);
  }
}

}  // namespace
}  // namespace lathe
