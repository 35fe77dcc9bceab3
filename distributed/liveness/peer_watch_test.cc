#include "lathe/distributed/liveness/peer_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A rank that gives no sign of life for this long counts as lost. A busy machine's ranks take less.
constexpr seconds kSilence(3);

// Runs `body` on each of `n` ranks that share a store.
std::vector<RankResult> WithWatches(int n,
                                    const std::function<std::string(int rank, PeerWatch&)>& body,
                                    bool gives_heartbeat = false) {
  return RunRanks(n, [&](const ProcessEnvironment& env) {
    auto [server, store] = OpenStore(env);
    PeerWatch watch(env.rank, n, std::move(server), std::move(store));
    watch.Run("meeting", [&] { watch.Exchange("here", "", seconds(10)); });
    if (gives_heartbeat) {
      watch.StartHeartbeat(ConnectToStore(env), kSilence);
    }
    return body(env.rank, watch);
  });
}

// Waits for what never comes.
void WaitForEver(PeerWatch& watch) {
  watch.Run("waiting", [&] { watch.PollUntil(seconds(30), [] { return false; }); });
}

TEST(PeerWatch, ExchangesWordsOfAllRanks) {
  for (const RankResult& result : WithWatches(3, [](int rank, PeerWatch&watch) {
         std::string said;
         watch.Run("meeting", [&] {
           for (const std::string& word :
                watch.Exchange("word", std::string(1, static_cast<char>('a' + rank)), seconds(10)))
             said += word;
         });
         watch.LeaveTogether();
         return said;
       })) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.said, "abc");
  }
}

// More ranks than a block of Exchange has, each a thread.
TEST(PeerWatch, ExchangesWordsOfManyRanks) {
  constexpr int kRanks = 300;
  const auto server = std::make_shared<StoreServer>("127.0.0.1", 0, "job");
  std::vector<std::thread> threads;
  std::vector<std::vector<std::string>> words(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      PeerWatch watch(rank, kRanks, nullptr,
                      std::make_shared<Store>("127.0.0.1", server->port(), "job", seconds(60),
                                              "rank " + std::to_string(rank)));
      watch.Run("meeting",
                [&] { words[rank] = watch.Exchange("word", std::to_string(rank), seconds(60)); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> expected;
  for (int rank = 0; rank < kRanks; ++rank) expected.push_back(std::to_string(rank));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(words[rank], expected) << rank;
}

TEST(PeerWatch, ARankThatIsToBlameItselfSaysSoToAll) {
  for (const int culprit : {0, 1, 2}) {
    const auto results = WithWatches(3, [culprit](int rank, PeerWatch& watch) {
      if (rank != culprit) WaitForEver(watch);
      watch.Run("computing", [] { throw OwnFault("out of device memory"); });
      return std::string();
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(results[rank].exit_code, 3);
      EXPECT_EQ(results[rank].said, std::string(rank == culprit ? "[computing]" : "[waiting]") +
                                        " rank " + std::to_string(rank) + " can't go on: rank " +
                                        std::to_string(culprit) + ": out of device memory");
      EXPECT_LT(results[rank].seconds, 5);
    }
  }
}

// Rank 0's time is up long before rank 2's. Both name only rank 1, which hangs.
TEST(PeerWatch, ARankThatWaitsIsNotBlamed) {
  const auto results = WithWatches(3, [](int rank, PeerWatch& watch) {
    if (rank == 1) {
      watch.SetPhase("sleeping");
      std::this_thread::sleep_for(seconds(5));
      return std::string();
    }
    if (rank == 2) WaitForEver(watch);
    std::this_thread::sleep_for(milliseconds(200));  // until rank 1 has said what it does
    watch.Run("waiting", [] { throw std::runtime_error("no answer"); });
    return std::string();
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].said, "[waiting] rank " + std::to_string(rank) +
                                      " can't go on: rank 1 does not answer while sleeping");
  }
}

// All are asked at once: one after the other, ten times half a second would pass.
TEST(PeerWatch, AllWhoHangAreFoundInOneRound) {
  constexpr int kHang = 10;
  const auto results = WithWatches(kHang + 2, [](int rank, PeerWatch& watch) {
    watch.SetPhase("sleeping");
    watch.Run("meeting", [&] { watch.Exchange("sleeps", "", seconds(20)); });
    if (rank > kHang) WaitForEver(watch);
    if (rank > 0) {
      std::this_thread::sleep_for(seconds(8));
      return std::string();
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      watch.Run("waiting", [] { throw std::runtime_error("no answer"); });
    } catch (const Error& e) {
      EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(4));
      EXPECT_EQ(FindLostRanks(e)->ranks.size(), size_t{kHang});
      return e.message();
    }
    return std::string();
  });
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_EQ(results[0].said,
            "[waiting] rank 0 can't go on: ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 do not answer while "
            "sleeping");
}

// Rank 2 waits in a call that looks at nothing. Its thread answers for it.
TEST(PeerWatch, ARankWhoseCallLooksAtNothingIsNotBlamed) {
  const auto results = WithWatches(
      3,
      [](int rank, PeerWatch& watch) {
        watch.Run("meeting", [&] { watch.Exchange("works", "", seconds(10)); });
        if (rank == 1) std::this_thread::sleep_for(seconds(6));
        if (rank == 2) {
          watch.Run("waiting", [] {
            std::this_thread::sleep_for(seconds(6));
            throw std::runtime_error("no answer");
          });
        }
        if (rank == 0) {
          std::this_thread::sleep_for(milliseconds(300));  // until rank 2 waits
          watch.Run("waiting", [] { throw std::runtime_error("no answer"); });
        }
        return std::string();
      },
      /*gives_heartbeat=*/true);
  EXPECT_EQ(results[0].said, "[waiting] rank 0 can't go on: rank 1 does not answer");
}

// Rank 0's call waits for rank 1, which lives and never comes. No single wait of it is too long.
TEST(PeerWatch, ACallThatLastsTooLongIsBrokenOff) {
  const auto results = RunRanks(2, [](const ProcessEnvironment& env) {
    auto [server, store] = OpenStore(env);
    PeerWatch watch(env.rank, 2, std::move(server), std::move(store));
    watch.Run("meeting", [&] { watch.Exchange("here", "", seconds(10)); });
    const auto broken_off = std::make_shared<std::promise<void>>();
    watch.StartHeartbeat(ConnectToStore(env), kSilence, [=] { broken_off->set_value(); });
    if (env.rank == 1) {
      std::this_thread::sleep_for(5 * kSilence);
      return std::string();
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      watch.Run("waiting", [&] {
        broken_off->get_future().get();
        EXPECT_GE(std::chrono::steady_clock::now() - start, kSilence);
        EXPECT_LT(std::chrono::steady_clock::now() - start, 4 * kSilence);
        throw std::runtime_error("broken off");
      });
    } catch (const Error& e) {
      return e.message();
    }
    return std::string();
  });
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_EQ(results[0].said, "[waiting] rank 0 can't go on: rank 1 does not answer");
}

TEST(PeerWatch, WhatComesAfterARankHasEndedCounts) {
  const auto results = WithWatches(2, [](int rank, PeerWatch& watch) {
    if (rank == 1) raise(SIGKILL);
    const auto end = std::chrono::steady_clock::now() + milliseconds(400);
    watch.Run("computing", [&] {
      watch.PollUntil(seconds(30), [&] { return std::chrono::steady_clock::now() >= end; });
    });
    return std::string("done");
  });
  EXPECT_EQ(results[0].said, "done");
}

TEST(PeerWatch, PatienceEnds) {
  const auto results = WithWatches(1, [](int, PeerWatch& watch) {
    watch.Run("waiting", [&] { watch.PollUntil(milliseconds(300), [] { return false; }); });
    return std::string();
  });
  EXPECT_EQ(results[0].said,
            "[waiting] rank 0 can't go on: the connection to another rank failed: no answer");
  EXPECT_GE(results[0].seconds, 0.3);
  EXPECT_LT(results[0].seconds, 3);
}

TEST(PeerWatch, ADeadRankIsNamedInAnExchange) {
  const auto results = WithWatches(2, [](int rank, PeerWatch& watch) {
    if (rank == 1) raise(SIGKILL);
    watch.Run("meeting", [&] { watch.Exchange("word", "", seconds(20)); });
    return std::string();
  });
  EXPECT_EQ(results[0].said, "[meeting] rank 0 can't go on: rank 1 has ended");
  EXPECT_LT(results[0].seconds, 10);
}

TEST(PeerWatch, WhoAwaitsAWordHearsOfTheProblem) {
  const auto results = WithWatches(2, [](int rank, PeerWatch& watch) {
    if (rank == 1) return watch.AwaitMessage("never", 0);
    watch.Run("computing", [] { throw OwnFault("broken"); });
    return std::string();
  });
  EXPECT_EQ(results[1].said, "[await] rank 1 can't go on: rank 0: broken");
}

// Rank 0 leaves while others still wait for it. They give up, and it waits for none of them.
TEST(PeerWatch, RankZeroThatLeavesEarlyDoesNotWaitForWhoMissesIt) {
  const auto results = WithWatches(3, [](int rank, PeerWatch& watch) {
    if (rank > 0) WaitForEver(watch);
    return std::string();
  });
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_LT(results[0].seconds, 8);
  for (const int rank : {1, 2}) {
    EXPECT_NE(results[rank].said.find("rank 0 has ended"), std::string::npos) << results[rank].said;
  }
}

// Rank 0 is stopped while it says goodbye, and still keeps the store for the others. A machine that
// stands still for a while looks the same.
TEST(PeerWatch, RankZeroThatIsStoppedInItsGoodbyeKeepsTheStore) {
  const auto results = WithWatches(2, [](int rank, PeerWatch& watch) {
    watch.Run("meeting", [&] {
      const std::string first =
          watch.Exchange("process", std::to_string(getpid()), seconds(10)).front();
      const pid_t rank_0 = std::stoi(first);
      for (int round = 0; rank == 1 && round < 3; ++round) {
        std::this_thread::sleep_for(milliseconds(300));  // until rank 0 waits
        kill(rank_0, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(1500));
        kill(rank_0, SIGCONT);
      }
    });
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      watch.PostMessage("late", "word");
    }
    return std::string();
  });
  ExpectAllWell(results);
}

// Stands for ranks that compute alone and only look at the others now and then.
void WorkUntilSomebodyIsLost(PeerWatch& watch) {
  for (;;) {
    watch.CheckPeers();
    std::this_thread::sleep_for(milliseconds(5));
  }
}

std::vector<RankResult> WorkWithout(int victim, int signal_number) {
  return WithWatches(
      3,
      [=](int rank, PeerWatch& watch) {
        watch.SetPhase("working");
        watch.Run("meeting", [&] { watch.Exchange("works", "", seconds(10)); });
        std::this_thread::sleep_for(kSilence + milliseconds(500));  // all ranks go on giving signs
        watch.CheckPeers();
        if (rank == victim && signal_number == SIGSTOP) {
          // Nobody would wake the stopped rank, so another process kills it.
          if (const pid_t stopped = getpid(); fork() == 0) {
            std::this_thread::sleep_for(kSilence + seconds(7));
            kill(stopped, SIGKILL);
            _exit(0);
          }
        }
        if (rank == victim) raise(signal_number);
        WorkUntilSomebodyIsLost(watch);
        return std::string();
      },
      /*gives_heartbeat=*/true);
}

TEST(PeerWatch, FindsWhoIsLostOutsideOfCalls) {
  for (const int victim : {0, 2}) {
    for (const int signal_number : {SIGKILL, SIGSTOP}) {
      const auto results = WorkWithout(victim, signal_number);
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        const std::string what = signal_number == SIGKILL ? " has ended" : " does not answer";
        EXPECT_EQ(results[rank].said,
                  "[check_peers] rank " + std::to_string(rank) + " can't go on: rank " +
                      std::to_string(victim) + what +
                      (victim == 0 ? "; this rank was working" : " while working"));
        EXPECT_LT(results[rank].seconds, 12);
      }
    }
  }
}

TEST(PeerWatch, CallsTheAlarmWhereNobodyLooks) {
  const auto results = WithWatches(
      2,
      [](int rank, PeerWatch& watch) {
        watch.Run("meeting", [&] { watch.Exchange("works", "", seconds(10)); });
        if (rank == 1) raise(SIGKILL);
        std::promise<std::string> said;
        watch.SetAlarm([&said](const Error& lost) { said.set_value(lost.message()); });
        return said.get_future().get();
      },
      /*gives_heartbeat=*/true);
  EXPECT_EQ(results[0].said, "[alarm] rank 0 can't go on: rank 1 has ended");
  EXPECT_LT(results[0].seconds, 5);
}

}  // namespace
}  // namespace lathe
