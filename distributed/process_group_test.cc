#include "lathe/distributed/process_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>

#include "lathe/core/error.h"
#include "lathe/distributed/reference_group.h"
#include "lathe/distributed/socket.h"
#include "lathe/distributed/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void ExpectAllWell(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << "rank " << rank << ": " << results[rank].said;
  }
}

// Numbers of ranks, which share a machine and its memory or talk over TCP.
class Collectives : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Bool()),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) +
                                  (std::get<1>(each.param) ? "Local" : "Tcp");
                         });

// On one machine or as if on several.
ProcessEnvironment Placed(ProcessEnvironment env, bool local) {
  if (!local) env.local_world_size = 1;
  return env;
}

TEST_P(Collectives, DoWhatTheySay) {
  const auto [n, local] = GetParam();
  ExpectAllWell(RunRanks(n, [n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(Placed(env, local), {.timeout = seconds(20)});
    EXPECT_EQ(group->rank(), env.rank);
    EXPECT_EQ(group->size(), n);
    const int mine = env.rank + 1, triangle = n * (n + 1) / 2;

    for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{100003}}) {
      std::vector<float> floats(size, static_cast<float>(mine));
      for (size_t i = 0; i < size; ++i) floats[i] += static_cast<float>(i % 7);
      group->AllReduce(floats);
      size_t wrong = 0;
      for (size_t i = 0; i < size; ++i) {
        wrong += floats[i] != static_cast<float>(triangle + n * static_cast<int>(i % 7));
      }
      EXPECT_EQ(wrong, 0u) << size;
    }
    std::vector<double> doubles = {0.5 * mine, -1.0 * mine};
    group->AllReduce(doubles, ReduceOp::kMax);
    EXPECT_EQ(doubles, (std::vector<double>{0.5 * n, -1}));
    std::vector<int64_t> whole = {mine, int64_t{1} << 40};
    group->AllReduce(whole, ReduceOp::kMin);
    EXPECT_EQ(whole, (std::vector<int64_t>{1, int64_t{1} << 40}));
    std::vector<float> bad = {env.rank == n - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f};
    group->AllReduce(bad);
    EXPECT_TRUE(std::isnan(bad[0]));

    const std::vector<int32_t> part = {env.rank, 10 * env.rank};
    std::vector<int32_t> all(part.size() * n);
    group->AllGather(std::as_bytes(std::span(part)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(all[2 * r], r);
      EXPECT_EQ(all[2 * r + 1], 10 * r);
    }
    for (int root = 0; root < n; ++root) {
      std::vector<int32_t> from = {env.rank, 7};
      group->Broadcast(std::as_writable_bytes(std::span(from)), root);
      EXPECT_EQ(from, (std::vector<int32_t>{root, 7}));
    }
    group->Barrier();
    EXPECT_THROW(group->Broadcast({}, n), Error);
    EXPECT_THROW(group->AllGather(std::as_bytes(std::span(part)), {}), Error);
    group->Barrier();  // the refused calls did no harm
    return std::string();
  }));
}

// Sums in floating point depend on their order; it is the same on each rank and each time.
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

// The largest difference from the reference, in units of the largest value.
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

// Of all sizes: from the pool, from its heap, whole pages from the system.
TEST_P(Collectives, ShareMemory) {
  const auto [n, local] = GetParam();
  ExpectAllWell(RunRanks(n, [n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(Placed(env, local), {.timeout = seconds(20)});
    for (const int64_t size : {int64_t{1} << 8, int64_t{9} << 10, (int64_t{17} << 20) + 1}) {
      const Tensor before = Tensor::Full({size}, -1);
      Tensor tensor = Tensor::Full({size}, env.rank + 5);
      Storage& storage = *tensor.impl()->storage;
      const float* const data = tensor.data<float>();
      group->ShareMemory(storage);
      const bool shared = storage.is_shared();
      EXPECT_EQ(shared, local && n > 1 && size > (1 << 8));
      EXPECT_EQ(tensor.data<float>(), data);
      const float first = static_cast<float>(shared ? 5 : env.rank + 5);
      EXPECT_TRUE(std::all_of(data, data + size, [&](float x) { return x == first; }));
      if (!shared) continue;
      group->Barrier();
      tensor.data<float>()[size - 1 - env.rank] = static_cast<float>(100 + env.rank);
      group->Barrier();
      for (int rank = 0; rank < n; ++rank)
        EXPECT_EQ(data[size - 1 - rank], static_cast<float>(100 + rank));
      group->Barrier();
      if (env.rank == 0) {
        storage.Unshare();
        EXPECT_EQ(tensor.data<float>(), data);
        tensor.Fill(7);
      }
      group->Barrier();
      EXPECT_EQ(data[size - 1], static_cast<float>(env.rank == 0 ? 7 : 100));
      group->Barrier();
      // What another tensor gets in its place is its own.
      tensor = Tensor();
      Tensor next = Tensor::Full({size}, env.rank);
      group->Barrier();
      EXPECT_EQ(next.data<float>()[size - 1], static_cast<float>(env.rank));
      EXPECT_EQ(before.data<float>()[size - 1], -1);
    }
    Tensor different = Tensor::Zeros({(100 + env.rank) << 10});
    group->ShareMemory(*different.impl()->storage);
    EXPECT_FALSE(different.impl()->storage->is_shared());
    return std::string();
  }));
}

TEST_P(Collectives, AgreeWithTheReference) {
  const auto [n, local] = GetParam();
  const std::string folder =
      testing::TempDir() + "/reference" + std::to_string(n) + (local ? "local" : "tcp");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ExpectAllWell(RunRanks(n, [&, n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(Placed(env, local), {.timeout = seconds(20)});
    const auto reference = MakeReferenceGroup(env.rank, n, folder);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      for (const size_t size : {size_t{1}, size_t{15}, size_t{1000}, size_t{70001}}) {
        EXPECT_LT(Compare<float>(*group, *reference, size, op), 3e-7) << size;
        EXPECT_LT(Compare<double>(*group, *reference, size, op), 1e-15) << size;
        EXPECT_EQ(Compare<int64_t>(*group, *reference, size, op), 0) << size;
        EXPECT_LT(Compare<BFloat16>(*group, *reference, size, op), 1.2e-2) << size;
      }
    }
    return std::string();
  }));
}

// What a rank has after both halves, and with which bits.
template <typename T>
std::vector<T> InHalves(ProcessGroup& group, std::vector<T> values) {
  group.ReduceScatter(std::span(values));
  group.Barrier();  // others may still read the rest
  const ElementRange own = Stripe({0, std::ssize(values)}, group.rank(), group.size());
  return {values.begin() + own.begin, values.begin() + own.end};
}

TEST_P(Collectives, HalvesAreThoseOfAnAllReduce) {
  const auto [n, local] = GetParam();
  const std::string folder =
      testing::TempDir() + "/halves" + std::to_string(n) + (local ? "local" : "tcp");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ExpectAllWell(RunRanks(n, [&, n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(Placed(env, local), {.timeout = seconds(20)});
    const auto reference = MakeReferenceGroup(env.rank, n, folder);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{33}, size_t{1000}, size_t{70001}}) {
      std::vector<float> all = SomeValues<float>(env.rank, size);
      const std::vector<float> half = InHalves(*group, all);
      const std::vector<float> expected = InHalves(*reference, all);
      EXPECT_EQ(half.size(), expected.size());
      for (size_t i = 0; i < half.size(); ++i) EXPECT_NEAR(half[i], expected.at(i), 1e-4) << i;
      group->AllReduce(all);
      const ElementRange own = Stripe({0, std::ssize(all)}, env.rank, n);
      if (local || n < 3) {  // in the same order
        EXPECT_TRUE(std::equal(half.begin(), half.end(), all.begin() + own.begin)) << size;
      }
      const auto narrow = InHalves(*group, SomeValues<BFloat16>(env.rank, size));
      for (size_t i = 0; i < half.size(); ++i)
        EXPECT_NEAR(static_cast<float>(narrow.at(i)), half[i], 10) << i;
    }
    // Only stripes of parts travel; the last part is large enough for several pieces.
    const std::vector<ElementRange> parts = {{3, 3}, {16, 17}, {100, 1100}, {2000, 900000}};
    for (ProcessGroup* each : {group.get(), reference.get()}) {
      std::vector<float> data(900100, static_cast<float>(env.rank));
      each->AllGatherStripes(data, parts, {{0, 900100}});
      std::vector<float> expected(data.size(), static_cast<float>(env.rank));
      for (const ElementRange& part : parts) {
        for (int rank = 0; rank < n; ++rank) {
          const ElementRange stripe = Stripe(part, rank, n);
          std::fill(expected.begin() + stripe.begin, expected.begin() + stripe.end,
                    static_cast<float>(rank));
        }
      }
      EXPECT_TRUE(data == expected);
      // Of what has changed nothing is left out, whatever else comes along.
      std::vector<ElementRange> changed;
      for (int64_t at = 5; at < 900000; at += at % 9000 + 77) changed.push_back({at, at + at % 71});
      for (float& value : data) value = static_cast<float>(env.rank + 10);
      each->AllGatherStripes(data, parts, changed);
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

// Rank `victim` ends or hangs in the middle; what the others say.
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
    EXPECT_EQ(result.said, "ranks 1, 3 did not join within 1.0 s");
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
  EXPECT_NE(results[0].said.find(": nobody answered in 0."), std::string::npos) << results[0].said;
}

// Stopped before it answers anybody.
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
  EXPECT_EQ(results[0].said, "rank 2 did not join within 2.0 s");
  const bool first_is_double = results[1].said == "rank 1 has joined twice";
  EXPECT_EQ(results[first_is_double ? 1 : 2].said, "rank 1 has joined twice");
  EXPECT_EQ(results[first_is_double ? 2 : 1].said, "rank 2 did not join within 2.0 s");
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

// Who comes later and is refused doesn't end the job that it wanted to join.
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
