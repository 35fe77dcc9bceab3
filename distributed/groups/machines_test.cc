// Tests the collectives of ranks on several machines, as their environments say. The ranks of a
// machine read each other's memory, and machines talk over TCP.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/check_collectives.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::seconds;

// The numbers of ranks of the machines.
using Machines = std::vector<int>;
class OnMachines : public testing::TestWithParam<Machines> {
 protected:
  static std::vector<RankResult> Run(
      const std::function<std::string(ProcessGroup&, const ProcessEnvironment&)>& body) {
    const Machines machines = GetParam();
    return RunRanks(std::accumulate(machines.begin(), machines.end(), 0),
                    [&](const ProcessEnvironment& env) {
                      const ProcessEnvironment placed = PlacedOn(env, machines);
                      return body(*JoinProcessGroup(placed, {.timeout = seconds(40)}), placed);
                    });
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, OnMachines,
                         testing::Values(Machines{4, 4}, Machines{2, 2, 2, 2}, Machines{3, 1},
                                         Machines{1, 4, 2}, Machines{1, 1, 1, 1, 1}, Machines{2, 2},
                                         Machines{3}),
                         [](const auto& each) {
                           std::string name;
                           for (const int ranks : each.param) name += "_" + std::to_string(ranks);
                           return "Ranks" + name;
                         });

TEST_P(OnMachines, DoWhatTheySay) {
  ExpectAllWell(Run([](ProcessGroup& group, const ProcessEnvironment&) {
    for (const size_t most : {size_t{1000}, size_t{100003}}) CheckCollectives(group, most);
    return std::string();
  }));
}

std::vector<float> Values(int rank, size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i)
    values[i] = std::sin(static_cast<float>(i + 1000 * static_cast<size_t>(rank))) *
                std::exp(static_cast<float>(rank % 4));
  return values;
}

// A sum has the same bits on each rank and each time. A reduce-scatter gives the same bits, too.
TEST_P(OnMachines, SumsAreTheSameBitsEverywhere) {
  const auto body = [](ProcessGroup& group, const ProcessEnvironment& env) {
    std::string bits;
    for (const size_t size : {size_t{1}, size_t{500}, size_t{2049}, size_t{70001}}) {
      std::vector<float> sum = Values(env.rank, size), stripe = sum;
      group.AllReduce(sum);
      group.ReduceScatter(std::span(stripe));
      const ElementRange own = StripeOfRank({0, std::ssize(sum)}, env.rank, group.size());
      EXPECT_TRUE(
          std::equal(sum.begin() + own.begin, sum.begin() + own.end, stripe.begin() + own.begin))
          << size;
      group.Barrier();
      bits.append(reinterpret_cast<const char*>(sum.data()), size * sizeof(float));
      std::vector<double> expected(size);
      for (int rank = 0; rank < group.size(); ++rank) {
        const std::vector<float> theirs = Values(rank, size);
        for (size_t i = 0; i < size; ++i) expected[i] += static_cast<double>(theirs[i]);
      }
      size_t wrong = 0;
      for (size_t i = 0; i < size; ++i)
        wrong += !(std::fabs(static_cast<double>(sum[i]) - expected[i]) < 1e-4);
      EXPECT_EQ(wrong, 0u) << size;
    }
    return bits;
  };
  const auto first = Run(body), second = Run(body);
  ExpectAllWell(first);
  for (size_t rank = 0; rank < first.size(); ++rank) {
    EXPECT_TRUE(first[rank].said == first[0].said) << rank;
    EXPECT_TRUE(first[rank].said == second[rank].said) << rank;
  }
}

// Each machine's sum is rounded once, and so is the total that all ranks get.
TEST_P(OnMachines, CompressedSumsAreRoundedOnce) {
  const bool one_machine = GetParam().size() == 1;
  const auto results = Run([&](ProcessGroup& group, const ProcessEnvironment& env) {
    const size_t size = 70001;
    std::vector<float> exact(size);
    for (size_t i = 0; i < size; ++i)
      exact[i] = 1 + static_cast<float>((i * 31 + static_cast<size_t>(env.rank) * 17) % 1000) / 999;
    std::vector<float> sum = exact, stripe = exact;
    group.AllReduce(exact);
    group.AllReduceCompressed(sum);
    group.ReduceScatterCompressed(stripe);
    const ElementRange own = StripeOfRank({0, std::ssize(sum)}, env.rank, group.size());
    // All values are positive. So the error of a sum is at most half a step of bfloat16.
    constexpr float kRounded = 1.0f / 256;
    size_t wrong = 0, wrong_stripe = 0, same = 0;
    for (size_t i = 0; i < size; ++i) {
      const float error = std::fabs(sum[i] - exact[i]) / exact[i];
      wrong += error > (one_machine ? 0 : 2.01f * kRounded);
      same += sum[i] == exact[i];
    }
    for (auto i = static_cast<size_t>(own.begin); i < static_cast<size_t>(own.end); ++i)
      wrong_stripe += std::fabs(stripe[i] - exact[i]) / exact[i] > 1.01f * kRounded;
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(wrong_stripe, 0u);
    EXPECT_EQ(same == size, one_machine);
    group.Barrier();
    return std::string(reinterpret_cast<const char*>(sum.data()), size * sizeof(float));
  });
  ExpectAllWell(results);
  for (const RankResult& result : results) EXPECT_TRUE(result.said == results[0].said);
}

TEST_P(OnMachines, StripesOfRangesTravelWhereTheyChanged) {
  ExpectAllWell(Run([](ProcessGroup& group, const ProcessEnvironment& env) {
    const std::vector<ElementRange> ranges = {{3, 3}, {16, 17}, {100, 1100}, {2000, 300000}};
    std::vector<ElementRange> changed;
    for (int64_t at = 5; at < 300000; at += at % 9000 + 77) changed.push_back({at, at + at % 71});
    for (const auto& travels : {std::vector<ElementRange>{{0, 300100}}, changed}) {
      std::vector<float> data(300100, static_cast<float>(env.rank)), expected = data;
      group.AllGatherStripes(data, ranges, travels);
      size_t wrong = 0;
      for (const ElementRange& range : ranges) {
        for (int rank = 0; rank < group.size(); ++rank) {
          for (const ElementRange& piece :
               Intersection(StripeOfRank(range, rank, group.size()), travels)) {
            for (int64_t i = piece.begin; i < piece.end; ++i)
              wrong += data[static_cast<size_t>(i)] != static_cast<float>(rank);
          }
        }
      }
      EXPECT_EQ(wrong, 0u);
    }
    return std::string();
  }));
}

// Each rank of a machine with as many ranks as the others talks to one rank of each other machine.
// A machine sends what a single rank of its own would send.
TEST_P(OnMachines, EachMachineSendsWhatItMust) {
  const Machines machines = GetParam();
  const auto results = Run([&](ProcessGroup& group, const ProcessEnvironment& env) {
    std::vector<float> data(size_t{1} << 19, 1);
    // When all have received what they await, all has been sent.
    const auto traffic = [&] {
      group.Barrier();
      return MeasureTcpTraffic(env.master_port);
    };
    const TcpTraffic before = traffic();
    group.AllReduce(data);
    const double reduced = traffic().bytes - before.bytes;
    group.Broadcast(std::as_writable_bytes(std::span(data)), 0);
    const double copied = traffic().bytes - before.bytes - reduced;
    group.AllReduceCompressed(data);
    const double compressed = traffic().bytes - before.bytes - reduced - copied;
    group.Barrier();  // nobody closes a connection before all have measured
    std::ostringstream out;
    out << before.connections << ' ' << reduced << ' ' << copied << ' ' << compressed;
    return out.str();
  });
  ExpectAllWell(results);
  const double bytes = static_cast<double>(sizeof(float)) * (1 << 19);
  const double num_ranks = static_cast<double>(results.size());
  const double num_machines = static_cast<double>(machines.size());
  const int num_channels = *std::ranges::max_element(machines);
  double broadcast_in_all = 0;
  size_t rank = 0;
  for (const int num_local : machines) {
    double reduced = 0, compressed = 0;
    int connections = 0;
    for (int place = 0; place < num_local; ++place) {
      std::istringstream said(results.at(rank++).said);
      int count = 0;
      double reduced_by_rank = 0, broadcast_by_rank = 0, compressed_by_rank = 0;
      said >> count >> reduced_by_rank >> broadcast_by_rank >> compressed_by_rank;
      if (num_local == num_channels) {
        EXPECT_EQ(count, static_cast<int>(machines.size()) - 1);
      }
      connections += count;
      reduced += reduced_by_rank;
      broadcast_in_all += broadcast_by_rank;
      compressed += compressed_by_rank;
    }
    EXPECT_EQ(connections, num_channels * (static_cast<int>(machines.size()) - 1));
    // The sums of the other machines' stripes, and then the totals of its own.
    const double own = num_local / num_ranks;
    const double expected = bytes * (1 - own + (num_machines - 1) * own);
    EXPECT_NEAR(reduced, expected, 0.01 * expected + 2000 * num_ranks) << rank;
    EXPECT_NEAR(compressed, expected / 2, 0.01 * expected + 2000 * num_ranks) << rank;
    if (std::ranges::count(machines, num_local) == std::ssize(machines)) {
      EXPECT_NEAR(expected, 2 * bytes * (1 - 1 / num_machines), 1);
    }
  }
  EXPECT_NEAR(broadcast_in_all, bytes * (num_machines - 1),
              0.01 * bytes * num_machines + 10000 * num_ranks);
}

// --- lost ranks ---

TEST(LostRankOnMachines, AKilledRankIsNamedAtOnceByAll) {
  for (const Machines& machines : {Machines{2, 2}, Machines{2, 2, 2, 2}, Machines{3, 1}}) {
    const int n = std::accumulate(machines.begin(), machines.end(), 0);
    for (const int victim : {0, 1, n - 1}) {
      for (const size_t size : {size_t{100}, size_t{1} << 20}) {
        const auto results = RunRanks(n, [&](const ProcessEnvironment& env) {
          const auto group = JoinProcessGroup(PlacedOn(env, machines), {.timeout = seconds(30)});
          std::vector<float> data(size, 1);
          for (int step = 0;; ++step) {
            if (step == 3 && env.rank == victim) raise(SIGKILL);
            group->AllReduce(data);
          }
          return std::string();
        });
        const double killed = results[static_cast<size_t>(victim)].seconds;
        for (int rank = 0; rank < n; ++rank) {
          if (rank == victim) continue;
          const RankResult& result = results[static_cast<size_t>(rank)];
          EXPECT_EQ(result.exit_code, 3);
          EXPECT_EQ(result.said, "[all_reduce] rank " + std::to_string(rank) +
                                     " can't go on: rank " + std::to_string(victim) + " has ended");
          EXPECT_LT(result.seconds - killed, 2.5);
        }
      }
    }
  }
}

TEST(LostRankOnMachines, AHangingRankIsNamedAfterTheTimeout) {
  const Machines machines = {2, 2};
  for (const int victim : {1, 2}) {
    const auto results = RunRanks(4, [&](const ProcessEnvironment& env) {
      const auto group = JoinProcessGroup(PlacedOn(env, machines), {.timeout = seconds(3)});
      std::vector<float> data(100000, 1);
      for (int step = 0;; ++step) {
        if (step == 3 && env.rank == victim) sleep(20);
        group->AllReduce(data);
      }
      return std::string();
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      const RankResult& result = results[static_cast<size_t>(rank)];
      EXPECT_EQ(result.said, "[all_reduce] rank " + std::to_string(rank) + " can't go on: rank " +
                                 std::to_string(victim) + " does not answer");
      EXPECT_LT(result.seconds, 12);
    }
  }
}

// One rank's call differs, and the ranks of the other machine hear of it.
TEST(LostRankOnMachines, ACallThatDoesNotMatchIsNamedByAll) {
  using Body = std::function<void(ProcessGroup&)>;
  static std::vector<float> some(3000);
  static std::vector<double> wide(1500);
  const Body sum = [](ProcessGroup& g) { g.AllReduce(some); };
  struct Case {
    Body other;
    std::string said;
  };
  const std::string differ = "the ranks' calls don't match: ";
  const Case cases[] = {
      {[](ProcessGroup& g) { g.Barrier(); }, differ + "rank 0 is in all_reduce, rank 1 is in "
                                                      "all_reduce, rank 2 is in all_reduce, rank 3 "
                                                      "is in barrier"},
      {[](ProcessGroup& g) { g.AllReduce(std::span(some).first(2000)); },
       differ + "they give different sizes"},
      {[](ProcessGroup& g) { g.AllReduce(wide); }, differ + "they give different dtypes"},
      {[](ProcessGroup& g) { g.AllReduce(some, ReduceOp::kMax); },
       differ + "they give different operations"},
  };
  for (const Case& c : cases) {
    const auto results = RunRanks(4, [&](const ProcessEnvironment& env) {
      const auto group = JoinProcessGroup(PlacedOn(env, {2, 2}), {.timeout = seconds(20)});
      (env.rank == 3 ? c.other : sum)(*group);
      return std::string("all well");
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.exit_code, 3) << result.said;
      EXPECT_NE(result.said.find(c.said), std::string::npos) << result.said;
      EXPECT_LT(result.seconds, 10);
    }
  }
}

}  // namespace
}  // namespace lathe
