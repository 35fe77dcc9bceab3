// Tests that two machines of two processes give the results of one process, and what ends both
// machines.
#include <signal.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/machines.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

TEST_F(TwoMachines, GiveTheResultsOfOneProcess) {
  const Args more = {"--max_steps", "12", "--do_eval"};
  const auto with_batch = [&](const std::string& out, const std::string& size) {
    Args all = more;
    all.insert(all.end(), {"--per_device_train_batch_size", size});
    return Finetune(out, all);
  };
  ASSERT_EQ(Launch(1, with_batch("one", "12")).exit_code, 0);
  ASSERT_EQ(RunOnAll(with_batch("four", "3")), (std::vector<int>{0, 0}))
      << Read("err.0") << Read("err.1");
  std::cout << (network_ != nullptr ? "two network namespaces" : "two addresses") << "\n";
  const std::vector<double> one = Losses("one"), four = Losses("four");
  ASSERT_EQ(one.size(), 12u);
  ASSERT_EQ(four.size(), 12u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(four[i], one[i], 1e-6 * one[i]) << i;
  EXPECT_EQ(ReadJson("four/eval_results.json")["eval_accuracy"],
            ReadJson("one/eval_results.json")["eval_accuracy"]);
  EXPECT_EQ(Read("out.1"), "");  // only the main process's machine prints
}

TEST_F(TwoMachines, MeetWhereTheMainOneIsGivenByItsName) {
  if (network_ == nullptr) GTEST_SKIP() << "no network namespaces can be made here";
  main_name_ = "main-machine";
  EXPECT_EQ(RunOnAll(Finetune("out", {"--max_steps", "3", "--ddp_timeout", "20"})),
            (std::vector<int>{0, 0}))
      << Read("err.0") << Read("err.1");
  EXPECT_EQ(Losses("out").size(), 3u);
}

// Each machine works in a folder of its own, to which a relative path leads.
TEST_F(TwoMachines, AFolderThatIsNotSharedTakesNoCheckpoints) {
  std::string script =
      "here=$PWD; own=" + Path("machine") + "$((RANK / 2)); mkdir -p $own; cd $own; exec $here/";
  for (const std::string& arg :
       Finetune("out", {"--output_dir", "out", "--max_steps", "3", "--save_steps", "1"}))
    script += arg + " ";
  Write("machine.sh", script + "\n");
  const std::vector<int> codes = RunOnAll({"/bin/sh", Path("machine.sh")});
  EXPECT_EQ(codes[0], 2) << Read("err.0") << Read("err.1");
  EXPECT_NE(codes[1], 0);
  EXPECT_NE(Read("err.0").find("out: rank 2 does not see the main process's output folder, into "
                               "which each process writes its part of a checkpoint\n"),
            std::string::npos)
      << Read("err.0");
}

TEST_F(TwoMachines, ASignalToOneLauncherEndsBothAlike) {
  const Args program =
      Finetune("out", {"--max_steps", "1000000", "--per_device_train_batch_size", "2"});
  for (const int machine : {0, 1}) {
    std::filesystem::remove_all(Path("out"));
    for (const int m : {0, 1}) Write("out." + std::to_string(m), "");
    const std::vector<int> codes = RunOnAll(program, [&] {
      EXPECT_TRUE(WaitUntil([&] { return Trains(); }, 120));
      kill(LauncherOf(machine), SIGINT);
    });
    EXPECT_EQ(codes, (std::vector<int>{130, 130})) << Read("err.0") << Read("err.1");
    EXPECT_TRUE(Exists("out/model.safetensors"));
    EXPECT_NE(Read("out.0").find("interrupted after step "), std::string::npos) << Read("out.0");
    // The launcher that got the signal says nothing. The other one reports how its rank has ended.
    EXPECT_EQ(Read("err." + std::to_string(machine)), "");
    EXPECT_TRUE(Read("err." + std::to_string(1 - machine))
                    .ends_with(") ended with exit code 130, as told by signal 2 (Interrupt)\n"))
        << Read("err." + std::to_string(1 - machine));
  }
}

// Tests what ends if a rank of the second machine is lost.
class LostRankOfTheOther : public TwoMachines {
 protected:
  struct Outcome {
    std::vector<int> codes;  // of the launchers
    // Seconds from the fault until the first machine has ended, and until both have.
    double first = 0, all = 0;
  };

  // Runs a long training, and sends the signal `fault` to rank `victim` after some steps.
  Outcome WithFault(int victim, int fault, const Args& more = {}) {
    std::filesystem::remove_all(Path("out"));
    Write("out.0", "");
    Args options = {"--max_steps", "1000000", "--per_device_train_batch_size", "2"};
    options.insert(options.end(), more.begin(), more.end());
    std::string script = "echo $$ > " + Path("") + "pid.$RANK; exec";
    for (const std::string& arg : Finetune("out", options)) script += " '" + arg + "'";
    Outcome outcome;
    TestClock::time_point start;
    Write("rank.sh", script);
    outcome.codes = RunOnAll({"sh", Path("rank.sh")}, [&] {
      EXPECT_TRUE(WaitUntil([&] { return Trains(); }, 120));
      const pid_t process = std::stoi(Read("pid." + std::to_string(victim)));
      const pid_t launcher = LauncherOf(0);
      start = TestClock::now();
      kill(process, fault);
      EXPECT_TRUE(WaitUntil([&] { return !IsAlive(launcher); }));
      outcome.first = SecondsSince(start);
    });
    outcome.all = SecondsSince(start);
    std::cout << "signal " << fault << " to rank " << victim << ": the other machine over after "
              << outcome.first << " s, its own after " << outcome.all << " s\n";
    return outcome;
  }
};

TEST_F(LostRankOfTheOther, AKilledOneEndsBothAtOnce) {
  for (int round = 0; round < FaultRounds(); ++round) {
    for (const int victim : {2, 3}) {
      const Outcome outcome = WithFault(victim, SIGKILL);
      const std::string errors = Read("err.0") + Read("err.1");
      EXPECT_EQ(outcome.codes, (std::vector<int>{75, 128 + SIGKILL})) << errors;
      EXPECT_LT(outcome.first, 2);
      EXPECT_LT(outcome.all, 2);
      const std::string rank = "rank " + std::to_string(victim);
      EXPECT_NE(Read("err.0").find("rank 0 can't go on: " + rank + " has ended while training\n"),
                std::string::npos)
          << errors;
      EXPECT_NE(Read("err.1").find(rank + " (process "), std::string::npos) << errors;
      EXPECT_TRUE(Read("err.1").ends_with(") was killed by signal 9 (Killed)\n")) << errors;
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

// Without shards, a rank that is left saves a checkpoint. If the main process is lost, it is a rank
// of the other launcher.
TEST_F(LostRankOfTheOther, BothLaunchersStartTheJobAgain) {
  for (const bool main_is_lost : {false, true}) {
    num_processes_ = main_is_lost ? 2 : 4;
    const std::string victim = main_is_lost ? "pid.0" : "pid.3";
    for (const char* left : {"whole", "out", "pid.0", "pid.1", "pid.2", "pid.3"})
      std::filesystem::remove_all(Path(left));
    Args options = {"--max_steps", "300", "--save_strategy", "steps", "--save_steps", "5"};
    if (main_is_lost)
      options.insert(options.end(), {"--no_shard_optimizer", "--save_total_limit", "3"});
    ASSERT_EQ(RunOnAll(Finetune("whole", options)), (std::vector<int>{0, 0}))
        << Read("err.0") << Read("err.1");
    std::string script =
        "[ -e " + Path("pid.$RANK") + " ] || echo $$ > " + Path("pid.$RANK") + "; exec";
    for (const std::string& arg : Finetune("out", options)) script += " '" + arg + "'";
    Write("rank.sh", script);
    Write("out.0", "");
    const Args program = {"--max_restarts", "2", "sh", Path("rank.sh")};
    const std::vector<int> codes = RunOnAll(program, [&] {
      EXPECT_TRUE(WaitUntil([&] { return Exists("out/checkpoint-10"); }, 120));
      kill(std::stoi(Read(victim)), SIGKILL);
    });
    EXPECT_EQ(codes, (std::vector<int>{0, 0})) << Read("err.0") << Read("err.1");
    for (const char* errors : {"err.0", "err.1"}) {
      EXPECT_NE(Read(errors).find("starting the job again with " + std::to_string(num_processes_) +
                                  " processes, restart 1 of 2\n"),
                std::string::npos)
          << Read(errors);
    }
    EXPECT_EQ(Read("out.0").find("begins at the first step"), std::string::npos) << Read("out.0");
    EXPECT_NE(Read("out.0").find("goes on"), std::string::npos) << Read("out.0");
    EXPECT_EQ(Read("whole/model.safetensors"), Read("out/model.safetensors"));
  }
}

// If the whole main machine is lost, the first rank of the other machine saves.
TEST_F(LostRankOfTheOther, TheWholeMainMachineMayBeLost) {
  for (int round = 0; round < FaultRounds(); ++round) {
    std::filesystem::remove_all(Path("out"));
    Write("out.0", "");
    const Args program =
        Finetune("out", {"--max_steps", "1000000", "--per_device_train_batch_size", "2"});
    const std::vector<int> codes = RunOnAll(program, [&] {
      EXPECT_TRUE(WaitUntil([&] { return Trains(); }, 120));
      kill(LauncherOf(0), SIGKILL);
    });
    EXPECT_EQ(codes[1], 75) << Read("err.1");
    EXPECT_NE(Read("err.1").find("rank 2: error: "), std::string::npos) << Read("err.1");
    const std::string saved =
        "is in " + Path("out") + "; training can go on from " + Path("out") + "/checkpoint-";
    EXPECT_NE(Read("err.1").find(saved), std::string::npos) << Read("err.1");
    EXPECT_TRUE(Exists("out/model.safetensors"));
  }
}

// A rank of the second machine ends before it has joined. The first machine's ranks learn of it
// from the second machine.
TEST_F(TwoMachines, ARankThatEndsBeforeItJoinsIsNamed) {
  for (const int code : {7, 0}) {
    std::string script = "test $RANK = 3 && sleep 2 && exit " + std::to_string(code) + "; exec";
    for (const std::string& arg : Finetune("out", {"--max_steps", "3", "--ddp_timeout", "60"}))
      script += " '" + arg + "'";
    Write("rank.sh", script);
    const TestClock::time_point start = TestClock::now();
    const std::vector<int> codes = RunOnAll({"sh", Path("rank.sh")}, [] {});
    EXPECT_LT(SecondsSince(start), 2 + 3);
    EXPECT_EQ(codes, (std::vector<int>{75, code == 0 ? 75 : code})) << Read("err.1");
    EXPECT_NE(Read("err.0").find("[joining] rank 0 can't go on: rank 3 has ended before all had "
                                 "joined\n"),
              std::string::npos)
        << Read("err.0");
  }
}

TEST_F(LostRankOfTheOther, AHangingOneEndsBothAfterTheTimeout) {
  for (int round = 0; round < FaultRounds(); ++round) {
    const Outcome outcome = WithFault(3, SIGSTOP, {"--ddp_timeout", "2"});
    const std::string errors = Read("err.0") + Read("err.1");
    EXPECT_EQ(outcome.codes, (std::vector<int>{75, 75})) << errors;
    EXPECT_GE(outcome.first, 2);
    EXPECT_LT(outcome.first, 2 + 3);
    EXPECT_LT(outcome.all, 2 + 3 + 10);  // until the launcher has killed rank 3
    EXPECT_NE(Read("err.0").find("rank 0 can't go on: rank 3 does not answer while training\n"),
              std::string::npos)
        << errors;
    EXPECT_NE(Read("err.1").find("rank 3 did not end within 5 s of being told to; it is killed\n"),
              std::string::npos)
        << errors;
    EXPECT_TRUE(Exists("out/model.safetensors"));
  }
}

// Either the timeout of calls is short, or only the limit for signs of life.
TEST_F(TwoMachines, BothNoticeThatTheNetworkIsCut) {
  if (network_ == nullptr) GTEST_SKIP() << "no network namespaces can be made here";
  for (const bool by_signs : {false, true}) {
    Args program = Finetune("out", {"--max_steps", "1000000", "--per_device_train_batch_size", "2",
                                    "--ddp_timeout", by_signs ? "600" : "3"});
    if (by_signs) program.insert(program.begin(), {"env", "LATHE_HEARTBEAT_TIMEOUT=3"});
    for (int round = 0; round < FaultRounds(); ++round) {
      Shell("ip -n " + BridgedMachines::Name(0) + " link set card up");
      std::filesystem::remove_all(Path("out"));
      TestClock::time_point cut;
      Write("out.0", "");
      const std::vector<int> codes = RunOnAll(program, [&] {
        EXPECT_TRUE(WaitUntil([&] { return Trains(); }, 120));
        cut = TestClock::now();
        EXPECT_TRUE(Shell("ip -n " + BridgedMachines::Name(0) + " link set card down"));
      });
      const double seconds = SecondsSince(cut);
      std::cout << "network cut, " << (by_signs ? "limit of signs" : "timeout")
                << " 3 s: over after " << seconds << " s\n";
      EXPECT_EQ(codes, (std::vector<int>{75, 75}));
      EXPECT_LT(seconds, 30);
      EXPECT_NE(Read("err.0").find("rank 0 can't go on: "), std::string::npos) << Read("err.0");
      EXPECT_NE(Read("err.1").find("rank 2: error: "), std::string::npos) << Read("err.1");
      EXPECT_TRUE(Exists("out/model.safetensors"));
    }
  }
}

// The machines have no other addresses than IPv6's in common.
TEST_F(TwoMachines, MeetOverIpv6) {
  if (network_ == nullptr) GTEST_SKIP() << "no network namespaces can be made here";
  for (const int machine : {0, 1}) {
    const std::string ip = "ip -n " + BridgedMachines::Name(machine) + " addr ";
    ASSERT_TRUE(Shell(ip + "flush dev card scope global && " + ip +
                      "add fd77::" + std::to_string(machine + 1) + "/64 dev card nodad"));
  }
  main_address_ = "[fd77::1]";
  EXPECT_EQ(RunOnAll(Finetune("out", {"--max_steps", "3", "--ddp_timeout", "20"})),
            (std::vector<int>{0, 0}))
      << Read("err.0") << Read("err.1");
  EXPECT_EQ(Losses("out").size(), 3u);
}

}  // namespace
}  // namespace lathe
