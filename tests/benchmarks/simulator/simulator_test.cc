// Compares the simulator with the group that it stands for, and with times that were measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/testing.h"
#include "lathe/tests/benchmarks/simulator/link_model.h"
#include "lathe/tests/benchmarks/simulator/recorded_call.h"

namespace lathe::simulator {
namespace {

using Machines = std::vector<int>;

// Returns the bytes that each rank sends to other machines.
std::vector<double> BytesOfRanks(const RecordedCall& call) {
  std::vector<double> bytes(call.actions.size());
  for (const Message& message : call.messages)
    bytes[static_cast<size_t>(message.from)] += static_cast<double>(message.bytes);
  return bytes;
}

// --- the schedules ---

class OnMachines : public testing::TestWithParam<Machines> {};
INSTANTIATE_TEST_SUITE_P(Layouts, OnMachines,
                         testing::Values(Machines{1, 1}, Machines{2, 2}, Machines{4, 4},
                                         Machines{2, 2, 2, 2}, Machines{3, 1}, Machines{1, 4, 2},
                                         Machines{1, 1, 1, 1, 1}, Machines{4, 4, 4, 4}),
                         [](const auto& each) {
                           std::string name = "Ranks";
                           for (const int ranks : each.param) name += "_" + std::to_string(ranks);
                           return name;
                         });

// Each rank sends over TCP what the recorded calls say, and has as many connections.
TEST_P(OnMachines, RanksSendWhatIsRecorded) {
  const Machines machines = GetParam();
  constexpr int64_t kElements = 1 << 19;
  const int num_ranks = std::accumulate(machines.begin(), machines.end(), 0);
  const auto results = RunRanks(num_ranks, [&](const ProcessEnvironment& env) {
    const auto group =
        JoinProcessGroup(PlacedOn(env, machines), {.timeout = std::chrono::seconds(40)});
    std::vector<float> data(kElements, 1);
    const std::vector<ElementRange> all = {{0, kElements}};
    const auto traffic = [&] {
      group->Barrier();
      return MeasureTcpTraffic(env.master_port);
    };
    TcpTraffic before = traffic();
    std::ostringstream out;
    out << before.connections;
    const auto measure = [&](const auto& call) {
      call();
      const TcpTraffic after = traffic();
      out << ' ' << after.bytes - before.bytes;
      before = after;
    };
    measure([&] { group->AllReduce(data); });
    measure([&] { group->ReduceScatter(data); });
    measure([&] { group->AllGatherStripes(data, all, all); });
    measure([&] { group->Broadcast(std::as_writable_bytes(std::span(data)), num_ranks - 1); });
    measure([&] {
      std::vector<std::byte> gathered(100'000 * static_cast<size_t>(num_ranks));
      group->AllGather(std::span(gathered).first(100'000), gathered);
    });
    group->Barrier();  // nobody closes a connection before all have measured
    return out.str();
  });
  ExpectAllWell(results);
  const MachineLayout layout = LayoutOf(machines);
  const std::vector<RecordedCall> calls = {
      RecordAllReduce(layout, kElements), RecordReduceScatter(layout, kElements),
      RecordAllGatherStripes(layout, {{0, kElements}}),
      RecordBroadcast(layout, 4 * kElements, num_ranks - 1), RecordAllGather(layout, 100'000)};
  const Connections connections = CountConnections(layout);
  int64_t ends = 0, most = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::istringstream said(results[static_cast<size_t>(rank)].said);
    int64_t count = 0;
    said >> count;
    ends += count;
    most = std::max(most, count);
    for (size_t i = 0; i < calls.size(); ++i) {
      double measured = 0;
      ASSERT_TRUE(said >> measured);
      const double recorded = BytesOfRanks(calls[i])[static_cast<size_t>(rank)];
      // Gloo has headers and announcements of its own.
      EXPECT_NEAR(measured, recorded, 0.01 * recorded + 3000 * static_cast<double>(machines.size()))
          << "call " << i << ", rank " << rank;
    }
  }
  EXPECT_EQ(ends, 2 * connections.all);
  EXPECT_EQ(most, connections.most);
}

// The bytes are those of the table in docs/distributed.md.
TEST(RecordedCall, EachMachineSendsWhatItMust) {
  for (const auto& [num_machines, num_local] :
       {std::pair{2, 1}, std::pair{4, 8}, std::pair{6, 2}, std::pair{64, 8}}) {
    const MachineLayout layout = LayoutOf(Machines(static_cast<size_t>(num_machines), num_local));
    const double m = num_machines, l = num_local, n = 4 << 20;
    const double agreement = 40 * l * std::bit_width(static_cast<unsigned>(num_machines) - 1);
    const auto sent = [&](const RecordedCall& call) {
      return static_cast<double>(call.BytesSent(layout, 0)) - agreement;
    };
    constexpr int64_t kElements = 1 << 20;
    const double slack = 128 * m * l;  // stripes differ by up to 32 elements
    EXPECT_EQ(sent(RecordBarrier(layout)), 0);
    EXPECT_NEAR(sent(RecordAllReduce(layout, kElements)), 2 * n * (1 - 1 / m), 2 * slack);
    EXPECT_NEAR(sent(RecordReduceScatter(layout, kElements)), n * (1 - 1 / m), slack);
    EXPECT_NEAR(sent(RecordAllGatherStripes(layout, {{0, kElements}})), n * (1 - 1 / m), slack);
    EXPECT_EQ(sent(RecordAllGather(layout, 1000)), 1000 * l * (m - 1));
    double in_all = 0;
    const RecordedCall broadcast = RecordBroadcast(layout, 4 << 20, 0);
    for (int machine = 0; machine < num_machines; ++machine)
      in_all += static_cast<double>(broadcast.BytesSent(layout, machine)) - agreement;
    EXPECT_EQ(in_all, n * (m - 1));
  }
}

TEST(RecordedCall, OneMachineSendsNothing) {
  const MachineLayout layout = LayoutOf({4});
  EXPECT_TRUE(RecordAllReduce(layout, 100'000).messages.empty());
  EXPECT_EQ(CountConnections(layout).all, 0);
  EXPECT_GT(SecondsOf(RecordAllReduce(layout, 100'000), layout, {}), 0);
}

// --- the links ---

using Kind = Action::Kind;

// Ranks that send so many bytes to rank 0 at the same time.
RecordedCall AllToFirst(int num_ranks, int64_t bytes) {
  RecordedCall call;
  call.actions.resize(static_cast<size_t>(num_ranks));
  for (int rank = 1; rank < num_ranks; ++rank) {
    const int32_t message = rank - 1;
    call.messages.push_back({rank, 0, bytes});
    call.actions[static_cast<size_t>(rank)] = {{Kind::kSend, message}, {Kind::kAwaitSend, message}};
    call.actions[0].push_back({Kind::kReceive, message});
  }
  for (int rank = 1; rank < num_ranks; ++rank)
    call.actions[0].push_back({Kind::kAwaitReceive, rank - 1});
  return call;
}

TEST(LinkModel, AMessageTakesItsBytesAndTheLatency) {
  const LinkModel link = {.bits_per_second = 8e6,
                          .payload_share = 0.5,
                          .latency = 0.25,
                          .message_seconds = 0,
                          .meeting_seconds = 0};
  const MachineLayout apart = LayoutOf({1, 1, 1, 1});
  // The receiver's answer, the bytes, and the way.
  EXPECT_NEAR(SecondsOf(AllToFirst(2, 1'000'000), LayoutOf({1, 1}), link), 0.25 + 2 + 0.25, 1e-9);
  // The receiver's link is the narrow one.
  EXPECT_NEAR(SecondsOf(AllToFirst(4, 1'000'000), apart, link), 0.25 + 6 + 0.25, 1e-9);
  // Two ranks of a machine share its link.
  EXPECT_NEAR(SecondsOf(AllToFirst(3, 1'000'000), LayoutOf({1, 2}), link), 0.25 + 4 + 0.25, 1e-9);
}

// Messages in both directions don't slow each other down.
TEST(LinkModel, LinksAreFullDuplex) {
  RecordedCall call;
  call.messages = {{0, 1, 1'000'000}, {1, 0, 1'000'000}};
  call.actions = {{{Kind::kReceive, 1}, {Kind::kSend, 0}, {Kind::kAwaitReceive, 1}},
                  {{Kind::kReceive, 0}, {Kind::kSend, 1}, {Kind::kAwaitReceive, 0}}};
  const LinkModel link = {
      .bits_per_second = 8e6, .payload_share = 1, .latency = 0, .message_seconds = 0};
  EXPECT_NEAR(SecondsOf(call, LayoutOf({1, 1}), link), 1, 1e-9);
}

TEST(LinkModel, RanksThatWaitForEachOtherAreFound) {
  RecordedCall call;
  call.messages = {{0, 1, 8}, {1, 0, 8}};
  call.actions = {{{Kind::kReceive, 1}, {Kind::kAwaitReceive, 1}, {Kind::kSend, 0}},
                  {{Kind::kReceive, 0}, {Kind::kAwaitReceive, 0}, {Kind::kSend, 1}}};
  EXPECT_THROW(SecondsOf(call, LayoutOf({1, 1}), {}), std::logic_error);
}

// machines_network_test has measured these. The machines there shared two busy cores, which the
// model leaves out, so it may be up to 15 % faster.
TEST(LinkModel, TimesAreNearThoseMeasured) {
  const std::pair<Machines, double> measured[] = {{{1, 1}, 2.2},
                                                  {{1, 1, 1, 1}, 3.4},
                                                  {{1, 1, 1, 1, 1, 1}, 3.9},
                                                  {{2, 2}, 2.2},
                                                  {{2, 2, 2, 2}, 3.5}};
  for (const auto& [machines, seconds] : measured) {
    const MachineLayout layout = LayoutOf(machines);
    const LinkModel link = {.bits_per_second = 400e6, .memory_per_second = 20e9};
    const double simulated = SecondsOf(RecordAllReduce(layout, 25'000'000), layout, link);
    EXPECT_GT(simulated, 0.85 * seconds) << machines.size();
    EXPECT_LT(simulated, 1.03 * seconds) << machines.size();
  }
}

}  // namespace
}  // namespace lathe::simulator
