// Shows when a rank that gives no sign of life counts as lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::seconds;

// Stops the processes for a while, from a process of its own.
void StopFor(seconds time, const std::vector<std::string>& processes) {
  if (fork() != 0) return;
  for (const int signal_number : {SIGSTOP, SIGCONT}) {
    for (const std::string& process : processes) kill(std::stoi(process), signal_number);
    if (signal_number == SIGSTOP) std::this_thread::sleep_for(time);
  }
  _exit(0);
}

// A call may last for a minute, and yet a rank that is stopped is found within the limit.
TEST(SilentRank, IsFoundLongBeforeTheTimeout) {
  for (const auto& victim_and_place : {std::pair(1, true), {0, true}, {1, false}, {0, false}}) {
    const int victim = victim_and_place.first;
    const bool one_machine = victim_and_place.second;
    const auto results = RunRanks(3, [&](const ProcessEnvironment& env) {
      // Rank 0's limit counts.
      const auto group = JoinProcessGroup(
          PlacedOn(env, one_machine),
          {.timeout = seconds(60), .heartbeat_timeout = seconds(env.rank == 0 ? 2 : 50)});
      group->Barrier();
      if (env.rank == victim) {
        StopFor(seconds(12), {std::to_string(getpid())});
        std::this_thread::sleep_for(seconds(12));
      }
      std::vector<float> data(1000, 1);
      group->AllReduce(data);
      return std::string("all well");
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].said, "[all_reduce] rank " + std::to_string(rank) +
                                        " can't go on: rank " + std::to_string(victim) +
                                        " does not answer");
      EXPECT_GE(results[rank].seconds, 1.5);
      EXPECT_LT(results[rank].seconds, 9);
    }
  }
}

// All ranks are stopped for longer than the limit, again and again, in calls and between them.
TEST(SilentRank, AJobThatIsSuspendedAsAWholeGoesOn) {
  for (const bool one_machine : {true, false}) {
    const auto results = RunRanks(3, [&](const ProcessEnvironment& env) {
      const auto group = JoinProcessGroup(
          PlacedOn(env, one_machine), {.timeout = seconds(60), .heartbeat_timeout = seconds(1)});
      const std::vector<std::string> processes = GatherStrings(*group, std::to_string(getpid()));
      std::vector<float> data(1000);
      for (int round = 0; round < 3; ++round) {
        if (env.rank == 0) StopFor(seconds(3), processes);
        for (int step = 0; step < 100; ++step) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5 + env.rank));
          group->AllReduce(data);
          group->CheckPeers();
        }
      }
      return std::string("all well");
    });
    ExpectAllWell(results);
    for (const RankResult& result : results) EXPECT_EQ(result.said, "all well");
    EXPECT_GE(results[1].seconds, 9);
  }
}

// Calls may last for less time than the job is stopped, in the midst of calls.
TEST(SilentRank, TimeInWhichTheJobIsStoppedDoesNotCount) {
  for (const bool one_machine : {true, false}) {
    const auto results = RunRanks(3, [&](const ProcessEnvironment& env) {
      const auto group = JoinProcessGroup(PlacedOn(env, one_machine), {.timeout = seconds(3)});
      const std::vector<std::string> processes = GatherStrings(*group, std::to_string(getpid()));
      std::vector<float> data(1000);
      for (int round = 0; round < 2; ++round) {
        if (env.rank == 0) StopFor(seconds(5), processes);
        for (int step = 0; step < 100; ++step) {
          std::this_thread::sleep_for(std::chrono::milliseconds(env.rank == step % 3 ? 20 : 0));
          group->AllReduce(data);
        }
      }
      return std::string("all well");
    });
    ExpectAllWell(results);
    for (const RankResult& result : results) EXPECT_EQ(result.said, "all well");
    EXPECT_GE(results[1].seconds, 10);
  }
}

// The limit may be longer than the timeout. Then a call's time ends first.
TEST(SilentRank, TheLimitDoesNotDelayTheTimeout) {
  const auto results = RunRanks(2, [&](const ProcessEnvironment& env) {
    const auto group =
        JoinProcessGroup(env, {.timeout = seconds(2), .heartbeat_timeout = seconds(50)});
    group->Barrier();
    if (env.rank == 1) std::this_thread::sleep_for(seconds(9));
    group->Barrier();
    return std::string("all well");
  });
  EXPECT_EQ(results[0].said, "[barrier] rank 0 can't go on: rank 1 does not answer");
  EXPECT_LT(results[0].seconds, 8);
}

}  // namespace
}  // namespace lathe
