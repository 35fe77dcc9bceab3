#include "lathe/distributed/groups/process_group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <tuple>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/check_collectives.h"
#include "lathe/distributed/testing/reference_group.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::seconds;

// Numbers of ranks, which either share a machine and its memory or talk over TCP.
class Collectives : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Bool()),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) +
                                  (std::get<1>(each.param) ? "Local" : "Tcp");
                         });

// Makes a new folder for the files of a reference group.
std::string ReferenceFolder(const std::string& name, int n, bool local) {
  const std::string folder =
      testing::TempDir() + "/" + name + std::to_string(n) + (local ? "local" : "tcp");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST_P(Collectives, DoWhatTheySay) {
  const auto [n, local] = GetParam();
  ExpectAllWell(RunRanks(n, [n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(PlacedOn(env, local), {.timeout = seconds(20)});
    EXPECT_EQ(group->rank(), env.rank);
    EXPECT_EQ(group->size(), n);
    CheckCollectives(*group, 100003);
    return std::string();
  }));
}

TEST(ReferenceGroup, DoesWhatItSays) {
  for (const int n : {1, 3}) {
    const std::string folder = ReferenceFolder("files", n, true);
    ExpectAllWell(RunRanks(n, [&](const ProcessEnvironment& env) {
      CheckCollectives(*MakeReferenceGroup(env.rank, n, folder), 1003);
      return std::string();
    }));
  }
}

// Floating-point sums depend on their order, which is the same on each rank and each time.
TEST(Sums, AreTheSameBitsEverywhere) {
  const auto body = [](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(env, {.timeout = seconds(20)});
    std::vector<float> data(50021);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = std::sin(static_cast<float>(i + 1000 * env.rank)) * std::exp(3.0f * env.rank);
    }
    group->AllReduce(data);
    return std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  };
  const auto first = RunRanks(3, body), second = RunRanks(3, body);
  ExpectAllWell(first);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(first[rank].said.size(), 50021 * sizeof(float));
    EXPECT_TRUE(first[rank].said == first[0].said);
    EXPECT_TRUE(first[rank].said == second[rank].said);
  }
}

template <typename T>
std::vector<T> SomeValues(int rank, size_t n) {
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) {
    const int v = static_cast<int>((i * 7919 + static_cast<size_t>(rank) * 104729) % 2001) - 1000;
    if constexpr (std::is_integral_v<T>) {
      values[i] = v;
    } else {
      values[i] = T(static_cast<float>(v) / 7);
    }
  }
  return values;
}

// Returns the largest difference from the reference, divided by the largest value.
template <typename T>
double Compare(ProcessGroup& group, ProcessGroup& reference, size_t n, ReduceOp op) {
  std::vector<T> a = SomeValues<T>(group.rank(), n), b = a;
  group.AllReduce(std::span(a), op);
  reference.AllReduce(std::span(b), op);
  double most = 0, error = 0;
  for (size_t i = 0; i < n; ++i) {
    most = std::max(most, std::fabs(static_cast<double>(b[i])));
    error = std::max(error, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most == 0 ? error : error / most;
}

// Some launchers don't say how many processes a machine has. Ranks that disagree about it use TCP.
TEST(Machines, WhereRanksDisagreeAboutTheirMachine) {
  for (const int n : {2, 3, 4}) {
    ExpectAllWell(RunRanks(n, [n](ProcessEnvironment env) {
      env.local_world_size = env.rank + 1;
      const auto group = JoinProcessGroup(env, {.timeout = seconds(20)});
      EXPECT_FALSE(group->reads_memory());
      std::vector<float> data(10000, static_cast<float>(env.rank));
      group->AllReduce(data);
      EXPECT_EQ(data, std::vector<float>(10000, static_cast<float>(n * (n - 1) / 2)));
      return std::string();
    }));
  }
}

TEST_P(Collectives, AgreeWithTheReference) {
  const auto [n, local] = GetParam();
  const std::string folder = ReferenceFolder("reference", n, local);
  ExpectAllWell(RunRanks(n, [&, n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(PlacedOn(env, local), {.timeout = seconds(20)});
    const auto reference = MakeReferenceGroup(env.rank, n, folder);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      for (const size_t size : {size_t{1}, size_t{15}, size_t{1000}, size_t{70001}}) {
        EXPECT_LT(Compare<float>(*group, *reference, size, op), 3e-7) << size;
        EXPECT_LT(Compare<double>(*group, *reference, size, op), 1e-15) << size;
        EXPECT_EQ(Compare<int64_t>(*group, *reference, size, op), 0) << size;
      }
    }
    return std::string();
  }));
}

// Returns this rank's stripe after a reduce-scatter.
template <typename T>
std::vector<T> InHalves(ProcessGroup& group, std::vector<T> values) {
  group.ReduceScatter(std::span(values));
  group.Barrier();  // others may still read the rest
  const ElementRange own = StripeOfRank({0, std::ssize(values)}, group.rank(), group.size());
  return {values.begin() + own.begin, values.begin() + own.end};
}

TEST_P(Collectives, HalvesAreThoseOfAnAllReduce) {
  const auto [n, local] = GetParam();
  const std::string folder = ReferenceFolder("halves", n, local);
  ExpectAllWell(RunRanks(n, [&, n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(PlacedOn(env, local), {.timeout = seconds(20)});
    const auto reference = MakeReferenceGroup(env.rank, n, folder);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{33}, size_t{1000}, size_t{70001}}) {
      std::vector<float> all = SomeValues<float>(env.rank, size);
      const std::vector<float> half = InHalves(*group, all);
      const std::vector<float> expected = InHalves(*reference, all);
      EXPECT_EQ(half.size(), expected.size());
      for (size_t i = 0; i < half.size(); ++i) EXPECT_NEAR(half[i], expected.at(i), 1e-4) << i;
      group->AllReduce(all);
      const ElementRange own = StripeOfRank({0, std::ssize(all)}, env.rank, n);
      if (local || n < 3) {  // the sums were taken in the same order
        EXPECT_TRUE(std::equal(half.begin(), half.end(), all.begin() + own.begin)) << size;
      }
    }
    // Only stripes of ranges travel. The last range is large enough for several pieces.
    const std::vector<ElementRange> ranges = {{3, 3}, {16, 17}, {100, 1100}, {2000, 900000}};
    for (ProcessGroup* each : {group.get(), reference.get()}) {
      std::vector<float> data(900100, static_cast<float>(env.rank));
      each->AllGatherStripes(data, ranges, {{0, 900100}});
      std::vector<float> expected(data.size(), static_cast<float>(env.rank));
      for (const ElementRange& range : ranges) {
        for (int rank = 0; rank < n; ++rank) {
          const ElementRange stripe = StripeOfRank(range, rank, n);
          std::fill(expected.begin() + stripe.begin, expected.begin() + stripe.end,
                    static_cast<float>(rank));
        }
      }
      EXPECT_TRUE(data == expected);
      // All that has changed arrives; unchanged elements may travel, too.
      std::vector<ElementRange> changed;
      for (int64_t at = 5; at < 900000; at += at % 9000 + 77) changed.push_back({at, at + at % 71});
      for (float& value : data) value = static_cast<float>(env.rank + 10);
      each->AllGatherStripes(data, ranges, changed);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += 10;
      for (const ElementRange& range : changed) {
        EXPECT_TRUE(std::equal(data.begin() + range.begin, data.begin() + range.end,
                               expected.begin() + range.begin));
      }
      size_t wrong = 0;
      for (size_t i = 0; i < data.size(); ++i) {
        wrong += data[i] != expected[i] && data[i] != static_cast<float>(env.rank + 10);
      }
      EXPECT_EQ(wrong, 0u);
    }
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
