// Tests of LaunchProgram: what ranks find, and what happens when one of them fails.
#include "lathe/distributed/launch/launch.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "lathe/distributed/launch/launch_testing.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LaunchProgram, NumbersTheRanks) {
  setenv("OMPI_COMM_WORLD_RANK", "5", 1);
  setenv("NCCL_COMM_ID", "10.0.0.1:1", 1);
  setenv("RANK", "7", 1);
  LaunchOptions options = Ranks(2);
  options.num_threads_per_process = 3;
  options.environment = {{"EXTRA", "more"}};
  const std::string print =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $EXTRA "
      "[$OMPI_COMM_WORLD_RANK$NCCL_COMM_ID] $MASTER_PORT $LATHE_JOB_ID";
  Launcher one(Script(print), options);
  EXPECT_EQ(one.Wait(), 0) << one.err();
  const auto lines = Sorted(Lines(one.out()));
  ASSERT_EQ(lines.size(), 2u) << one.out();
  const std::string first = "0 2 0 2 127.0.0.1 3 more [] ", second = "1 2 1 2 127.0.0.1 3 more [] ";
  EXPECT_TRUE(lines[0].starts_with(first)) << lines[0];
  EXPECT_TRUE(lines[1].starts_with(second)) << lines[1];
  EXPECT_EQ(lines[0].substr(first.size()), lines[1].substr(second.size()));
  EXPECT_GT(lines[0].size(), first.size() + 8);

  options.num_processes = 4;
  options.num_machines = 2;
  options.machine_rank = 1;
  options.main_process_ip = "10.1.2.3";
  options.main_process_port = 29511;
  Launcher several(Script(print), options);
  EXPECT_EQ(several.Wait(), 0) << several.err();
  EXPECT_EQ(Sorted(Lines(several.out())),
            (std::vector<std::string>{"2 4 0 2 10.1.2.3 3 more [] 29511 10.1.2.3:29511",
                                      "3 4 1 2 10.1.2.3 3 more [] 29511 10.1.2.3:29511"}));
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "NCCL_COMM_ID", "RANK"}) unsetenv(name);
}

TEST(LaunchProgram, SharesCoresOut) {
  unsetenv("OMP_NUM_THREADS");
  const auto threads = [](int ranks) {
    Launcher launcher(Script("echo $OMP_NUM_THREADS"), Ranks(ranks));
    EXPECT_EQ(launcher.Wait(), 0);
    return Lines(launcher.out());
  };
  EXPECT_EQ(threads(1), std::vector{std::to_string(UsableCores())});
  const int many = UsableCores() + 1;
  EXPECT_EQ(threads(many), std::vector<std::string>(static_cast<size_t>(many), "1"));
  setenv("OMP_NUM_THREADS", "5", 1);
  EXPECT_EQ(threads(1), std::vector<std::string>{"5"});
  unsetenv("OMP_NUM_THREADS");
}

TEST(LaunchProgram, EndsWithTheFirstThatFails) {
  Launcher launcher(Script("if [ $RANK = 1 ]; then sleep 0.2; exit 7; fi; echo $$; exec sleep 99"),
                    Ranks(3, {.notice = milliseconds(100)}));
  const auto others = launcher.WaitForLines(2);
  EXPECT_EQ(launcher.Wait(), 7);
  for (const std::string& other : others) EXPECT_FALSE(Runs(std::stoi(other)));
  // The launcher tells the cause when it has to stop the others, and again at the end.
  EXPECT_EQ(WithoutProcesses(launcher.err()),
            "lathe launch: rank 1 ended with exit code 7; stopping the others\n"
            "lathe launch: the job failed because rank 1 ended with exit code 7\n");
}

TEST(LaunchProgram, TellsTheCauseLast) {
  Launcher launcher(Script("if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 0.3; echo rank 1 is gone "
                           ">&2; exit 3"),
                    Ranks(3, {.patience = seconds(20)}));
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_EQ(
      WithoutProcesses(launcher.err()),
      "rank 1 is gone\nrank 1 is gone\nlathe launch: rank 1 was killed by signal 9 (Killed)\n");
}

TEST(LaunchProgram, ARankThatHasLostAnotherIsNotTheCause) {
  const std::string first =
      "test $RANK = 0 && exit 75; sleep 0.3; test $RANK = 1 && exit 6; exit 75";
  Launcher launcher(Script(first), Ranks(3, {.patience = seconds(20)}));
  EXPECT_EQ(launcher.Wait(), 6);
  EXPECT_EQ(WithoutProcesses(launcher.err()), "lathe launch: rank 1 ended with exit code 6\n");
  // It is the cause after all if no other rank here has failed by itself.
  Launcher lost(Script("test $RANK = 0 && exit 75; exec sleep 99"),
                Ranks(2, {.notice = milliseconds(50)}));
  EXPECT_EQ(lost.Wait(), 75);
  EXPECT_EQ(WithoutProcesses(lost.err()),
            "lathe launch: rank 0 ended with exit code 75, because it has lost another rank; "
            "stopping the others\n");
}

TEST(LaunchProgram, SaysThatARankHasFollowedASignal) {
  Launcher launcher(Script("exit 143"), Ranks(1));
  EXPECT_EQ(launcher.Wait(), 143);
  EXPECT_EQ(WithoutProcesses(launcher.err()),
            "lathe launch: rank 0 ended with exit code 143, as told by signal 15 (Terminated)\n");
}

TEST(LaunchProgram, NamesTheSignalThatKilledARank) {
  Launcher launcher(Script("if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 99"),
                    Ranks(2, {.notice = milliseconds(100)}));
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_NE(launcher.err().find("was killed by signal 9 (Killed); stopping the others"),
            std::string::npos)
      << launcher.err();
}

TEST(LaunchProgram, BlamesTheOneThatWasKilledOfThoseFoundTogether) {
  Launcher launcher(Script("echo $$; sleep 0.5; test $RANK = 1 && kill -9 $$; exit 3"), Ranks(2));
  const auto ranks = launcher.WaitForLines(2);
  launcher.Kill(SIGSTOP);
  for (const std::string& rank : ranks) {
    EXPECT_TRUE(Eventually([&] { return !Runs(std::stoi(rank)); }));
  }
  launcher.Kill(SIGCONT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(launcher.err().starts_with("lathe launch: rank 1 ")) << launcher.err();
}

TEST(LaunchProgram, LetsTheOthersTellOfADeadPeer) {
  Launcher launcher(
      Script("if [ $RANK = 0 ]; then exit 4; fi; sleep 0.5; echo rank 0 is gone; exit 3"),
      Ranks(2));
  EXPECT_EQ(launcher.Wait(), 4);
  EXPECT_EQ(launcher.out(), "rank 0 is gone\n");
}

// The other thread gets the signal that tells of an ended rank, and ignores it.
TEST(LaunchProgram, NoticesAnEndBesideOtherThreads) {
  Launcher launcher([] {
    std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
    return LaunchProgram(Script("sleep 0.3; exit 4"), Ranks(1));
  });
  EXPECT_EQ(launcher.Wait(), 4) << launcher.err();
}

TEST(LaunchProgram, OneThatEndsWellEndsAlone) {
  Launcher launcher(Script("if [ $RANK = 0 ]; then exit 0; fi; sleep 0.5; echo done"), Ranks(2));
  EXPECT_EQ(launcher.Wait(), 0);
  EXPECT_EQ(launcher.out(), "done\n");
  EXPECT_EQ(launcher.err(), "");
}

TEST(LaunchProgram, KillsAfterAFailureWhatIgnoresSigterm) {
  Launcher launcher(
      Script("if [ $RANK = 0 ]; then sleep 0.5; exit 4; fi; trap '' TERM; while :; do sleep 1; "
             "done"),
      Ranks(2, {.notice = milliseconds(50), .stop = milliseconds(300)}));
  EXPECT_EQ(launcher.Wait(), 4);
  EXPECT_NE(launcher.err().find("rank 1 did not end within 0.3 s of being told to; it is killed"),
            std::string::npos)
      << launcher.err();
}

// A rank that still computes is not killed at once: it may be saving what is left.
TEST(LaunchProgram, KillsAfterAFailureNoneThatWorks) {
  const SupervisorOptions times = {
      .grace = std::chrono::seconds(20), .notice = milliseconds(100), .stop = milliseconds(300)};
  Launcher launcher(Script("test $RANK = 0 && exit 3; trap '' TERM; i=0; "
                           "while test $i -lt 600000; do i=$((i + 1)); done; echo saved"),
                    Ranks(2, times));
  EXPECT_EQ(launcher.Wait(), 3);
  EXPECT_EQ(launcher.out(), "saved\n");
}

TEST(LaunchProgram, KillsAfterTheGraceWhatWorksForEver) {
  const SupervisorOptions times = {
      .grace = milliseconds(800), .notice = milliseconds(100), .stop = milliseconds(300)};
  Launcher launcher(Script("test $RANK = 0 && exit 3; trap '' TERM; while :; do :; done"),
                    Ranks(2, times));
  EXPECT_EQ(launcher.Wait(), 3);
  EXPECT_NE(launcher.err().find("rank 1 did not end within 0.8 s of being told to; it is killed"),
            std::string::npos)
      << launcher.err();
}

// The pauses of 0.1, 0.2 and 0.4 s keep a job that fails at once from burning the machine.
TEST(LaunchProgram, PausesLongerBeforeEachRestart) {
  LaunchOptions options = Ranks(1);
  options.max_restarts = 3;
  const auto start = std::chrono::steady_clock::now();
  Launcher launcher(Script("echo $TORCHELASTIC_MAX_RESTARTS ${TORCHELASTIC_RESTART_COUNT:-0}; "
                           "exit 3"),
                    options);
  EXPECT_EQ(launcher.Wait(), 3);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(700));
  EXPECT_EQ(launcher.out(), "3 0\n3 1\n3 2\n3 3\n");
}

// A job is killed, and finds a disk full that has space again after 3 s.
TEST(LaunchProgram, AFullDiskThatGetsSpaceAgainEndsNoJob) {
  LaunchOptions options = Ranks(1);
  options.max_restarts = 3;
  const std::string script =
      "n=${TORCHELASTIC_RESTART_COUNT:-0}; echo $n; test $n = 0 && kill -9 $$; "
      "test $(date +%s) -ge $FULL_UNTIL || exit 1";
  options.environment.emplace_back("FULL_UNTIL", std::to_string(std::time(nullptr) + 3));
  Launcher launcher(Script(script), options);
  EXPECT_EQ(launcher.Wait(), 0) << launcher.err();
  EXPECT_EQ(launcher.out(), "0\n1\n2\n");
}

// An error that comes at the first start is likely to stay, so nobody waits long for the end.
TEST(LaunchProgram, AnErrorFromTheFirstStartOnEndsTheJobSoon) {
  LaunchOptions options = Ranks(1);
  options.max_restarts = 9;
  const auto start = std::chrono::steady_clock::now();
  Launcher launcher(Script("echo start; exit 1"), options);
  EXPECT_EQ(launcher.Wait(), 1);
  EXPECT_EQ(launcher.out(), "start\nstart\nstart\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(8));
}

TEST(LaunchProgram, StartsNothingAgainAfterAUsageError) {
  LaunchOptions options = Ranks(1);
  options.max_restarts = 3;
  Launcher launcher(Script("echo ${TORCHELASTIC_RESTART_COUNT:-0}; exit 2"), options);
  EXPECT_EQ(launcher.Wait(), 2);
  EXPECT_EQ(launcher.out(), "0\n");
}

TEST(LaunchProgram, DoesWithoutStandardStreams) {
  for (const bool tag_output : {false, true}) {
    Launcher launcher([&] {
      close(STDIN_FILENO);
      close(STDOUT_FILENO);
      return LaunchProgram(Script("echo lost; echo kept >&2"),
                           Ranks(2, {.tag_output = tag_output}));
    });
    EXPECT_EQ(launcher.Wait(), 0);
    const std::vector<std::string> lines = Sorted(Lines(launcher.err()));
    EXPECT_EQ(lines, tag_output ? (std::vector<std::string>{"[0] kept", "[1] kept"})
                                : (std::vector<std::string>{"kept", "kept"}));
  }
}

TEST(LaunchProgram, EndsWhatARankLeavesBehind) {
  Launcher launcher(Script("sleep 99 & echo $!"), Ranks(2));
  EXPECT_EQ(launcher.Wait(), 0);
  const auto left = Lines(launcher.out());
  ASSERT_EQ(left.size(), 2u);
  for (const std::string& process : left) {
    EXPECT_TRUE(Eventually([&] { return !Runs(std::stoi(process)); })) << process;
  }
}

}  // namespace
}  // namespace lathe
