#include "lathe/distributed/groups/machine_layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lathe {
namespace {

using Machines = std::vector<std::vector<int>>;

// Returns the ranks of each machine.
Machines MachinesOf(const MachineLayout& layout) {
  Machines machines;
  for (int machine = 0; machine < layout.num_machines(); ++machine) {
    machines.push_back(layout.RanksOf(machine));
    for (size_t place = 0; place < machines.back().size(); ++place) {
      const int rank = machines.back()[place];
      EXPECT_EQ(layout.MachineOf(rank), machine);
      EXPECT_EQ(layout.PlaceOf(rank), static_cast<int>(place));
      EXPECT_EQ(layout.RankAt(machine, static_cast<int>(place)), rank);
      std::vector<int> carried;
      for (int channel = 0; channel < layout.num_channels(); ++channel) {
        if (layout.CarrierOf(channel, machine) == static_cast<int>(place))
          carried.push_back(channel);
      }
      EXPECT_EQ(layout.ChannelsOf(rank), carried);
    }
    EXPECT_EQ(layout.RankAt(machine, static_cast<int>(machines.back().size())), -1);
  }
  return machines;
}

TEST(MachineLayout, RanksInTheOrderOfMachines) {
  const MachineLayout layout({{7, 0, 2}, {7, 1, 2}, {8, 0, 3}, {8, 1, 3}, {8, 2, 3}});
  EXPECT_EQ(MachinesOf(layout), (Machines{{0, 1}, {2, 3, 4}}));
  EXPECT_EQ(layout.num_channels(), 3);
  EXPECT_EQ(layout.CarrierOf(2, 0), 0);
  EXPECT_EQ(layout.CarrierOf(2, 1), 2);
}

TEST(MachineLayout, RanksInTurns) {
  EXPECT_EQ(MachinesOf(MachineLayout({{7, 0, 2}, {8, 0, 2}, {7, 1, 2}, {8, 1, 2}})),
            (Machines{{0, 2}, {1, 3}}));
}

TEST(MachineLayout, MachinesOfOneName) {
  EXPECT_EQ(MachinesOf(MachineLayout({{7, 0, 2}, {7, 1, 2}, {7, 0, 1}, {7, 0, 2}, {7, 1, 2}})),
            (Machines{{0, 1}, {2}, {3, 4}}));
}

// Some launchers don't say how many processes a machine has, or where each of them is.
TEST(MachineLayout, RanksThatDisagreeAreAlone) {
  EXPECT_EQ(MachinesOf(MachineLayout({{7, 0, 1}, {7, 1, 2}, {8, 0, 2}, {8, 1, 2}})),
            (Machines{{0}, {1}, {2, 3}}));
  EXPECT_EQ(MachinesOf(MachineLayout({{7, 1, 2}, {7, 0, 2}})), (Machines{{0}, {1}}));
  EXPECT_EQ(MachinesOf(MachineLayout({{7, 0, 1}, {7, 1, 1}})), (Machines{{0}, {1}}));
}

TEST(MachineLayout, Split) {
  MachineLayout layout({{7, 0, 2}, {8, 0, 2}, {7, 1, 2}, {8, 1, 2}});
  layout.SplitUnless([](const std::vector<int>& ranks) { return ranks[0] != 0; });
  EXPECT_EQ(MachinesOf(layout), (Machines{{0}, {1, 3}, {2}}));
  EXPECT_EQ(layout.num_channels(), 2);
}

// Returns RanksByMachine for ranks on these hosts. A `*` follows the host of a local main process.
Machines ByMachine(const std::vector<std::string>& hosts) {
  std::vector<RankPlacement> placements;
  for (const std::string& host : hosts)
    placements.push_back({static_cast<uint64_t>(host[0]), host.ends_with('*') ? 0 : 1, 1});
  return RanksByMachine(placements);
}

TEST(RanksByMachine, OneAfterTheOther) {
  EXPECT_EQ(ByMachine({"a*", "a", "b*", "b", "b"}), (Machines{{0, 1}, {2, 3, 4}}));
}

TEST(RanksByMachine, InTurns) {
  EXPECT_EQ(ByMachine({"a*", "b*", "a", "b", "a"}), (Machines{{0, 2, 4}, {1, 3}}));
}

TEST(RanksByMachine, MainsNeedNotBeFirst) {
  EXPECT_EQ(ByMachine({"a", "b", "a*", "b*", "a"}), (Machines{{0, 2, 4}, {1, 3}}));
}

// Machines may have the same name, as in tests that run several "machines" on one.
TEST(RanksByMachine, MachinesOfOneName) {
  EXPECT_EQ(ByMachine({"a*", "a", "a*", "a*", "a"}), (Machines{{0, 1}, {2}, {3, 4}}));
}

TEST(RanksByMachine, NobodyIsMain) { EXPECT_EQ(ByMachine({"a", "b*"}), (Machines{{0}, {1}})); }

}  // namespace
}  // namespace lathe
