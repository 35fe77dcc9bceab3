#include "lathe/distributed/job/job.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Ranks = std::vector<int>;

// Returns RanksOnSameMachine for each rank. `hosts`: each rank's host. A `*` follows the host
// of a local main process.
std::vector<Ranks> Beside(std::vector<std::string> hosts) {
  std::vector<bool> mains;
  for (std::string& host : hosts) {
    mains.push_back(host.back() == '*');
    if (mains.back()) host.pop_back();
  }
  std::vector<Ranks> beside;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank)
    beside.push_back(RanksOnSameMachine(rank, hosts, mains));
  return beside;
}

TEST(RanksOnSameMachine, OneAfterTheOther) {
  const Ranks a = {0, 1}, b = {2, 3, 4};
  EXPECT_EQ(Beside({"a*", "a", "b*", "b", "b"}), (std::vector<Ranks>{a, a, b, b, b}));
}

TEST(RanksOnSameMachine, InTurns) {
  const Ranks a = {0, 2, 4}, b = {1, 3};
  EXPECT_EQ(Beside({"a*", "b*", "a", "b", "a"}), (std::vector<Ranks>{a, b, a, b, a}));
}

TEST(RanksOnSameMachine, MainsNeedNotBeFirst) {
  const Ranks a = {0, 2, 4}, b = {1, 3};
  EXPECT_EQ(Beside({"a", "b", "a*", "b*", "a"}), (std::vector<Ranks>{a, b, a, b, a}));
}

// Machines may have the same name, as in tests that run several "machines" on one.
TEST(RanksOnSameMachine, MachinesOfOneName) {
  const Ranks first = {0, 1}, second = {2}, third = {3, 4};
  EXPECT_EQ(Beside({"a*", "a", "a*", "a*", "a"}),
            (std::vector<Ranks>{first, first, second, third, third}));
}

TEST(RanksOnSameMachine, NobodyIsMain) { EXPECT_EQ(Beside({"a", "b*"})[0], Ranks{0}); }

}  // namespace
}  // namespace lathe
