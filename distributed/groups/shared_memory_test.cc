// Tests memory that the ranks of a machine have in common, or show each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <tuple>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::seconds;

// Numbers of ranks, which either share a machine and its memory or talk over TCP.
class SharedMemory : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, SharedMemory,
                         testing::Combine(testing::Values(1, 2, 3), testing::Bool()),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) +
                                  (std::get<1>(each.param) ? "Local" : "Tcp");
                         });

// Sizes in floats: of a block from the pool, of one from its heap, and of a large one.
#ifdef __SANITIZE_THREAD__
constexpr int64_t kMostSize = (int64_t{1} << 20) + 1;  // because each access takes long
#else
constexpr int64_t kMostSize = (int64_t{17} << 20) + 1;
#endif
constexpr int64_t kSizes[] = {int64_t{1} << 8, int64_t{9} << 10, kMostSize};
constexpr int64_t kNoPages = kSizes[0];

// A tensor whose memory, if it is large, is whole pages from the system, as a model's parameters
// are.
Tensor FullOfOwnPages(int64_t size, double value) {
  Tensor tensor = Tensor::Zeros({size});
  tensor.Fill(value);
  return tensor;
}

TEST_P(SharedMemory, IsOneCopyUntilSomebodyHasItsOwn) {
  const auto [n, local] = GetParam();
  ExpectAllWell(RunRanks(n, [n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(PlacedOn(env, local), {.timeout = seconds(20)});
    for (const int64_t size : kSizes) {
      const Tensor before = Tensor::Full({size}, -1);
      Tensor tensor = FullOfOwnPages(size, env.rank + 5);
      Storage& storage = *tensor.impl()->storage;
      const float* const data = tensor.data<float>();
      group->ShareMemory(storage);
      const bool shared = storage.is_writable_by_others();
      EXPECT_EQ(shared, local && n > 1 && size != kNoPages);
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
      // The next tensor in the same place is each rank's own.
      tensor = Tensor();
      Tensor next = Tensor::Full({size}, env.rank);
      group->Barrier();
      EXPECT_EQ(next.data<float>()[size - 1], static_cast<float>(env.rank));
      EXPECT_EQ(before.data<float>()[size - 1], -1);
    }
    Tensor different = Tensor::Zeros({(100 + env.rank) << 10});
    group->ShareMemory(*different.impl()->storage);
    EXPECT_FALSE(different.impl()->storage->is_writable_by_others());
    return std::string();
  }));
}

// Returns how many memory files with shown memory this process maps.
int64_t MappedViews() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    // Mappings of one file that follow each other are one line.
    count += line.find("memfd:lathe gradients") != std::string::npos ? 1 : 0;
  }
  return count;
}

// Reduces elements [begin, end) and expects all ranks' sums in this rank's stripe, whatever is
// shown.
void ExpectSums(ProcessGroup& group, Tensor& tensor, int64_t begin, int64_t end) {
  const int n = group.size();
  float* const data = tensor.data<float>();
  for (int64_t i = begin; i < end; ++i) data[i] = static_cast<float>(i % 5 + group.rank() + 1);
  group.ReduceScatter(std::span(data + begin, static_cast<size_t>(end - begin)));
  const ElementRange own = StripeOfRank({begin, end}, group.rank(), n);
  int64_t wrong = 0;
  for (int64_t i = own.begin; i < own.end; ++i)
    wrong += data[i] != static_cast<float>(n * (i % 5) + n * (n + 1) / 2);
  EXPECT_EQ(wrong, 0) << begin << " to " << end;
  group.Barrier();
}

TEST_P(SharedMemory, WhatIsShownIsReadWhereItIs) {
  const auto [n, local] = GetParam();
  ExpectAllWell(RunRanks(n, [n = n, local = local](const ProcessEnvironment& env) {
    const auto group = JoinProcessGroup(PlacedOn(env, local), {.timeout = seconds(20)});
    for (const int64_t size : kSizes) {
      const bool shows = local && n > 1 && size != kNoPages;
      Tensor tensor = FullOfOwnPages(size, env.rank + 5);
      const float* const data = tensor.data<float>();
      std::shared_ptr<Storage> storage = tensor.impl()->storage;
      const int64_t part = size * 3 / 4;
      auto shown = group->ExposeMemory(storage, part * static_cast<int64_t>(sizeof(float)));
      EXPECT_EQ(shown != nullptr, shows);
      EXPECT_EQ(storage->sharing(),
                shows ? Storage::Sharing::kOthersRead : Storage::Sharing::kNone);
      EXPECT_FALSE(storage->is_writable_by_others());
      EXPECT_EQ(tensor.data<float>(), data);
      EXPECT_EQ(std::count(data, data + size, static_cast<float>(env.rank + 5)), size);
      EXPECT_EQ(MappedViews(), shows ? n : 0);
      const auto try_all = [&](Tensor& any) {
        ExpectSums(*group, any, 0, part);
        ExpectSums(*group, any, 100, part - 7);
        ExpectSums(*group, any, 100, size);  // the other ranks can see only a part of it
      };
      try_all(tensor);
      // Shows a smaller part a second time, beside the first.
      const auto again = group->ExposeMemory(storage, part);
      EXPECT_EQ(MappedViews(), shows ? 2 * n : 0);
      try_all(tensor);
      shown.reset();
      try_all(tensor);
      // One rank has memory of its own again.
      if (env.rank == 0) storage->Unshare();
      try_all(tensor);
      // The next tensor in the same place isn't taken for what was shown.
      storage.reset();
      tensor = Tensor();
      Tensor next = Tensor::Full({size}, 1);
      try_all(next);
    }
    EXPECT_EQ(MappedViews(), 0);
    const Tensor different = Tensor::Zeros({(100 + env.rank) << 10});
    const auto& storage = different.impl()->storage;
    EXPECT_EQ(group->ExposeMemory(storage, storage->bytes()), nullptr);
    EXPECT_EQ(storage->sharing(), Storage::Sharing::kNone);
    return std::string();
  }));
}

}  // namespace
}  // namespace lathe
