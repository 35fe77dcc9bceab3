// Tests the collectives between machines with links of limited bandwidth.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/network_testing.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBytesPerSecond = 50e6;

class OnLinks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, OnLinks,
                         testing::Values(std::vector<int>{1, 1}, std::vector<int>{2, 2},
                                         std::vector<int>{9, 7}, std::vector<int>{5, 2, 1},
                                         std::vector<int>{1, 1, 1, 1}, std::vector<int>{2, 2, 2, 2},
                                         std::vector<int>{6, 5, 3, 2},
                                         std::vector<int>{1, 1, 1, 1, 1, 1}),
                         [](const auto& each) {
                           std::string name = "Machines";
                           for (const int ranks : each.param) name += "Of" + std::to_string(ranks);
                           return name;
                         });

// The links carry what a machine must send and little more, and are busy for most of the time.
TEST_P(OnLinks, AnAllReduceTakesTheTimeOfItsBytes) {
  constexpr double kBytes = 100e6;
  const std::vector<int> machines = GetParam();
  const int num_machines = static_cast<int>(machines.size());
  const BridgedMachines network(num_machines, static_cast<int64_t>(8 * kBytesPerSecond));
  if (!network.works()) GTEST_SKIP() << "no network namespaces can be made here";
  const int n = std::accumulate(machines.begin(), machines.end(), 0);
  std::vector<int> machine_of;
  double least_seconds = 0;
  for (int machine = 0; machine < num_machines; ++machine) {
    machine_of.resize(machine_of.size() + static_cast<size_t>(machines[machine]), machine);
    // A machine owns the sums of its share of the data. First it sends what the others own and
    // receives what it owns itself, from each of them. Then the sums travel the other way.
    const double share = machines[machine] / static_cast<double>(n);
    const double busiest = std::max(1 - share, share * (num_machines - 1));
    least_seconds = std::max(least_seconds, 2 * kBytes * busiest / kBytesPerSecond);
  }
  const double limit = 1.3 * least_seconds;
  const auto results = RunProcesses(Environments(n, FreePort()), [&](ProcessEnvironment env) {
    env = PlacedOn(env, machines);
    env.master_addr = BridgedMachines::Address(0);
    BridgedMachines::Enter(machine_of[env.rank]);
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(60)});
    constexpr int64_t kSize = kBytes / sizeof(float);
    Tensor data;
    double seconds = 1e9, bytes = 0;
    std::vector<float> too_slow = {1};                            // how many ranks
    for (int trial = 0; trial < 3 && too_slow[0] > 0; ++trial) {  // the machine may be busy
      data = Tensor::Full({kSize}, env.rank);
      group->Barrier();
      const double before = BridgedMachines::BytesSent();
      const Clock::time_point start = Clock::now();
      group->AllReduce(std::span(data.data<float>(), kSize));
      group->Barrier();
      seconds = std::min(seconds, std::chrono::duration<double>(Clock::now() - start).count());
      bytes = BridgedMachines::BytesSent() - before;
      too_slow[0] = seconds < limit ? 0 : 1;
      group->AllReduce(too_slow);
    }
    const float* const sums = data.data<float>();
    EXPECT_EQ(sums[0], static_cast<float>(n * (n - 1) / 2));
    EXPECT_EQ(std::memcmp(sums, sums + 1, (kSize - 1) * sizeof(float)), 0) << "all are the same";
    std::ostringstream out;
    out << seconds << ' ' << bytes;
    return out.str();
  });
  ExpectAllWell(results);
  double seconds = 0, bytes = 0;
  for (int rank = 0; rank < n; ++rank) {
    const double share = machines[machine_of[rank]] / static_cast<double>(n);
    const double least = kBytes * (1 - share + share * (num_machines - 1));
    std::istringstream(results[rank].said) >> seconds >> bytes;
    EXPECT_GT(bytes, least) << rank;
    EXPECT_LT(bytes, 1.06 * least) << rank;  // with the headers of packets
  }
  std::cout << n << " ranks on " << num_machines << " machines: " << seconds << " s, "
            << 100 * least_seconds / seconds << " % of the busiest link\n";
  EXPECT_LT(seconds, limit);
}

}  // namespace
}  // namespace lathe
