// Shows what ranks say when another rank is late, ends, hangs or belongs to another job.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Lets rank `victim` end or hang in the middle. Returns what each rank said.
std::vector<RankResult> WithFault(int n, int victim, const std::function<void()>& fault,
                                  milliseconds timeout) {
  return RunRanks(n, [=](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(env, {.timeout = timeout});
    std::vector<float> data(1000, 1);
    for (int step = 0;; ++step) {
      if (step == 3 && env.rank == victim) fault();
      group->AllReduce(data);
    }
    return std::string();
  });
}

TEST(Faults, ADeadRankIsNamedAtOnce) {
  for (const int victim : {0, 1, 2}) {
    const auto results = WithFault(
        3, victim, [] { raise(SIGKILL); }, seconds(30));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].exit_code, 3);
      EXPECT_EQ(results[rank].said, "[all_reduce] rank " + std::to_string(rank) +
                                        " can't go on: rank " + std::to_string(victim) +
                                        " has ended");
      EXPECT_LT(results[rank].seconds - results[victim].seconds, 2);
    }
  }
}

TEST(Faults, ARankThatThrowsIsNamedAtOnce) {
  const auto results = WithFault(
      3, 1, [] { throw InvalidArgument("train.csv:3: ragged"); }, seconds(30));
  EXPECT_EQ(results[1].said, "train.csv:3: ragged");
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].said,
              "[all_reduce] rank " + std::to_string(rank) + " can't go on: rank 1 has ended");
    EXPECT_LT(results[rank].seconds - results[1].seconds, 2);
  }
}

TEST(Faults, AHangingRankIsNamedAfterTheTimeout) {
  const auto results = WithFault(
      3, 1, [] { std::this_thread::sleep_for(seconds(12)); }, seconds(2));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].said,
              "[all_reduce] rank " + std::to_string(rank) + " can't go on: rank 1 does not answer");
    EXPECT_GE(results[rank].seconds, 2);
    EXPECT_LT(results[rank].seconds, 10);
  }
}

// The time of a rank that hangs while others work by themselves counts from then on, not from when
// they need it.
TEST(Faults, AHangIsCountedFromItsBeginning) {
  for (const auto& victim_and_place : {std::pair(1, true), {0, true}, {1, false}, {0, false}}) {
    const int victim = victim_and_place.first;
    const bool one_machine = victim_and_place.second;
    const auto results = RunRanks(2, [&](const ProcessEnvironment& env) {
      const auto group = JoinProcessGroup(PlacedOn(env, one_machine), {.timeout = seconds(6)});
      const auto hang = [&] {
        raise(SIGSTOP);
        return std::string();
      };
      if (env.rank == victim) return hang();
      std::this_thread::sleep_for(seconds(5));
      try {
        group->Barrier();
      } catch (const Error& e) {
        kill(0, SIGCONT);
        return e.message();
      }
      return std::string("all well");
    });
    const RankResult& other = results[static_cast<size_t>(1 - victim)];
    EXPECT_EQ(other.said, "[barrier] rank " + std::to_string(1 - victim) + " can't go on: rank " +
                              std::to_string(victim) + " does not answer");
    EXPECT_GE(other.seconds, 5);
    EXPECT_LT(other.seconds, 8.5);
  }
}

TEST(Faults, CallsThatDoNotMatchAreNamed) {
  using Body = std::function<void(ProcessGroup&)>;
  struct Case {
    Body first, second;
    std::string said;
  };
  static std::vector<float> few(3), many(70000);
  static std::vector<std::byte> bytes(100), all(200);
  const Body barrier = [](ProcessGroup& g) { g.Barrier(); };
  const Body reduce_few = [](ProcessGroup& g) { g.AllReduce(few); };
  const Body reduce_many = [](ProcessGroup& g) { g.AllReduce(many); };
  const Body gather = [](ProcessGroup& g) { g.AllGather(bytes, all); };
  const Body broadcast = [](ProcessGroup& g) { g.Broadcast(bytes, 0); };
  const Body scatter = [](ProcessGroup& g) { g.ReduceScatter(std::span(many)); };
  const std::string differ = "the ranks' calls don't match: rank 0 is in ";
  const Case cases[] = {
      {barrier, reduce_few, differ + "barrier, rank 1 is in all_reduce"},
      {reduce_many, barrier, differ + "all_reduce, rank 1 is in barrier"},
      {gather, reduce_many, differ + "all_gather, rank 1 is in all_reduce"},
      {scatter, reduce_many, differ + "reduce_scatter, rank 1 is in all_reduce"},
      {broadcast, gather, differ + "broadcast, rank 1 is in all_gather"},
      {reduce_few, reduce_many,
       "can't go on: the ranks' calls don't match: they give different sizes"},
      {reduce_many, reduce_few,
       "can't go on: the ranks' calls don't match: they give different sizes"},
  };
  for (const bool one_machine : {true, false}) {
    for (const Case& c : cases) {
      const auto results = RunRanks(2, [&](const ProcessEnvironment& env) {
        const auto group = JoinProcessGroup(PlacedOn(env, one_machine), {.timeout = seconds(2)});
        (env.rank == 0 ? c.first : c.second)(*group);
        return std::string("all well");
      });
      for (const RankResult& result : results) {
        EXPECT_EQ(result.exit_code, 3) << result.said;
        EXPECT_NE(result.said.find(c.said), std::string::npos)
            << (one_machine ? "local" : "tcp") << ": " << result.said;
      }
    }
  }
}

TEST(Joining, NamesWhoIsLate) {
  std::vector<ProcessEnvironment> environments = Environments(4, FreePort());
  environments.erase(environments.begin() + 1);
  environments.pop_back();  // ranks 0 and 2 come
  const auto results = RunProcesses(environments, [](const ProcessEnvironment& env) {
    JoinProcessGroup(env, {.timeout = seconds(1)});
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_EQ(result.said, "ranks 1, 3 did not join within 1 s");
  }
}

TEST(Joining, ARankThatEndsBeforeAllHaveJoinedIsNamedAtOnce) {
  for (const int victim : {0, 1, 2}) {
    std::vector<ProcessEnvironment> environments = Environments(4, FreePort());
    environments.pop_back();  // rank 3 never comes
    const auto results = RunProcesses(environments, [=](const ProcessEnvironment& env) {
      std::thread fault([=] {
        std::this_thread::sleep_for(seconds(1));
        if (env.rank == victim) raise(SIGKILL);
      });
      fault.detach();
      JoinProcessGroup(env, {.timeout = seconds(30)});
      return std::string();
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].exit_code, 3);
      EXPECT_EQ(results[rank].said, "[joining] rank " + std::to_string(rank) +
                                        " can't go on: rank " + std::to_string(victim) +
                                        " has ended before all had joined");
      EXPECT_LT(results[rank].seconds - results[victim].seconds, 2);
    }
  }
}

TEST(Joining, WithoutRankZero) {
  std::vector<ProcessEnvironment> environments = Environments(2, FreePort());
  environments.erase(environments.begin());
  const auto results = RunProcesses(environments, [](const ProcessEnvironment& env) {
    JoinProcessGroup(env, {.timeout = milliseconds(500)});
    return std::string();
  });
  EXPECT_NE(results[0].said.find(": rank 0 did not answer within 0."), std::string::npos)
      << results[0].said;
}

// Rank 0 is stopped before it answers anybody.
TEST(Joining, ARankZeroThatHangs) {
  const Socket listener = Listen("127.0.0.1", 0);
  std::vector<ProcessEnvironment> environments = Environments(3, LocalPort(listener));
  environments.erase(environments.begin());
  const auto results = RunProcesses(environments, [](const ProcessEnvironment& env) {
    JoinProcessGroup(env, {.timeout = seconds(1)});
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_TRUE(result.said.ends_with(" s: rank 0 hangs, or it is another program")) << result.said;
    EXPECT_LT(result.seconds, 4);
  }
}

TEST(Joining, TwiceTheSameRank) {
  std::vector<ProcessEnvironment> environments = Environments(3, FreePort());
  environments[2].rank = 1;
  const auto results = RunProcesses(environments, [](const ProcessEnvironment& env) {
    JoinProcessGroup(env, {.timeout = seconds(2)});
    return std::string();
  });
  EXPECT_EQ(results[0].said, "rank 1 has joined twice, and rank 2 did not join within 2 s");
  const bool first_is_double = results[1].said == "rank 1 has joined twice";
  EXPECT_EQ(results[first_is_double ? 1 : 2].said, "rank 1 has joined twice");
  EXPECT_EQ(results[first_is_double ? 2 : 1].said,
            "rank 1 has joined twice, and rank 2 did not join within 2 s");
}

// Returns what the rank prints while it waits.
std::string JoinsInVain(const ProcessEnvironment& env) {
  return CaptureStderr(
      [&] { EXPECT_THROW(JoinProcessGroup(env, {.timeout = milliseconds(10500)}), Error); });
}

TEST(Joining, SaysAfterTenSecondsForWhomItWaits) {
  const int port = FreePort();
  std::vector<ProcessEnvironment> environments = Environments(4, port);
  environments.erase(environments.begin() + 2);
  const auto results = RunProcesses(environments, JoinsInVain);
  ExpectAllWell(results);
  EXPECT_EQ(results[0].said, "note: waiting for rank 2 to join at 127.0.0.1:" +
                                 std::to_string(port) + ", for 10.5 s in all\n");
  EXPECT_EQ(results[1].said, "");
}

TEST(Joining, SaysAfterTenSecondsThatRank0IsMissing) {
  const int port = FreePort();
  std::vector<ProcessEnvironment> environments = Environments(4, port);
  environments = {environments[2], environments[3]};
  for (ProcessEnvironment& env : environments) env.local_rank -= 2;
  const auto results = RunProcesses(environments, JoinsInVain);
  ExpectAllWell(results);
  EXPECT_EQ(results[0].said, "note: waiting for rank 0 to answer at 127.0.0.1:" +
                                 std::to_string(port) + ", for 10.5 s in all\n");
  EXPECT_EQ(results[1].said, "");
}

// This happens in `lathe launch sh -c 'one && another'`, if rank 0 of the first program still
// writes something.
TEST(Joining, AfterAProgramWhoseRank0StillRuns) {
  ExpectAllWell(RunRanks(2, [](const ProcessEnvironment& env) {
    for (int program = 0; program < 3; ++program) {
      const auto group = JoinProcessGroup(env, {.timeout = seconds(10)});
      std::vector<float> sum = {1};
      group->AllReduce(sum);
      EXPECT_EQ(sum[0], 2);
      if (env.rank == 0) std::this_thread::sleep_for(milliseconds(300));
    }
    return std::string();
  }));
}

TEST(Joining, AfterAProgramWhoseRank0DoesNotEnd) {
  const int port = FreePort();
  const auto results = RunProcesses(Environments(2, port), [](const ProcessEnvironment& env) {
    auto group = JoinProcessGroup(env, {.timeout = seconds(5)});
    group->Barrier();
    if (env.rank == 0) {
      std::this_thread::sleep_for(seconds(5));
    } else {
      group.reset();
      JoinProcessGroup(env, {.timeout = seconds(2)});
    }
    return std::string();
  });
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_EQ(results[1].said, "rank 0 of the program that ran before at 127.0.0.1:" +
                                 std::to_string(port) + " did not end within 2 s");
}

// Rank 0 takes the store with it, so it waits for the others, and says so when one doesn't end.
TEST(Ending, BesideARankThatDoesNot) {
  const auto results = RunRanks(2, [](const ProcessEnvironment& env) {
    return CaptureStderr([&] {
      const auto group = JoinProcessGroup(env, {.timeout = seconds(2)});
      group->Barrier();
      if (env.rank == 1) std::this_thread::sleep_for(seconds(5));
    });
  });
  ExpectAllWell(results);
  EXPECT_EQ(results[0].said,
            "note: rank 0 has waited 2 s for rank 1 to end, and ends without it\n");
  EXPECT_EQ(results[1].said, "");
}

TEST(Joining, DifferentWorldSizes) {
  std::vector<ProcessEnvironment> environments = Environments(2, FreePort());
  environments[1].world_size = 3;
  const auto results = RunProcesses(environments, [](const ProcessEnvironment& env) {
    JoinProcessGroup(env, {.timeout = seconds(5)});
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.said, "rank 1 belongs to a job of 3 processes but rank 0 to one of 2");
  }
}

TEST(Joining, TwoJobsOnOnePort) {
  const int port = FreePort();
  std::vector<ProcessEnvironment> environments = Environments(2, port);
  const auto other = Environments(2, port);
  environments.push_back(other[1]);
  environments[2].job = "other";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto results = RunProcesses(environments, [&](const ProcessEnvironment& env) {
    // The job stays until the stranger has been refused.
    struct Refused {
      int fd;
      ~Refused() { EXPECT_EQ(write(fd, "12", 2), 2); }
    };
    std::optional<Refused> refused;
    if (env.job == "other") refused.emplace(ends[1]);
    const auto group = JoinProcessGroup(env, {.timeout = seconds(30)});
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    group->Barrier();
    return std::string();
  });
  for (const int fd : ends) close(fd);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].said;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].said;
  EXPECT_EQ(results[2].said,
            "127.0.0.1:" + std::to_string(port) + ": rank 0 of another job listens there");
}

// A process that comes later and is refused doesn't end the job that it wanted to join.
TEST(Joining, StrangersThatAreRefusedAreNotMissed) {
  const int port = FreePort();
  std::vector<ProcessEnvironment> environments = Environments(2, port);
  for (const char* job : {"other", ""}) {
    environments.push_back(environments[1]);
    if (*job != 0) environments.back().job = job;
    environments.back().local_rank = 7;  // to tell it from the first one
  }
  const auto results = RunProcesses(environments, [](const ProcessEnvironment& env) {
    if (env.local_rank == 7) std::this_thread::sleep_for(milliseconds(500));
    const auto group = JoinProcessGroup(env, {.timeout = seconds(5)});
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(milliseconds(100));
      group->CheckPeers();
      group->Barrier();
    }
    return std::string("all is well");
  });
  EXPECT_EQ(results[0].said, "all is well");
  EXPECT_EQ(results[1].said, "all is well");
  EXPECT_NE(results[2].said.find("rank 0 of another job listens there"), std::string::npos);
  EXPECT_EQ(results[3].said, "rank 1 has joined twice");
}

}  // namespace
}  // namespace lathe
