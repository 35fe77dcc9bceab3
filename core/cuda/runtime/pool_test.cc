#include "lathe/core/cuda/runtime/pool.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Hands out addresses without memory behind them.
class FakeDevice : public SegmentSource {
 public:
  explicit FakeDevice(int64_t total) : total_(total) {}
  void* Allocate(int64_t bytes) override {
    ++allocations;
    if (broken) throw Error(absl::StatusCode::kInternal, "the device is gone");
    if (used_ + bytes > total_) return nullptr;
    used_ += bytes;
    char* begin = next_;
    next_ += bytes;  // segments are adjacent, but their blocks must not be merged
    segments[begin] = bytes;
    return begin;
  }
  void Release(void* segment) override {
    const auto found = segments.find(static_cast<char*>(segment));
    ASSERT_NE(found, segments.end());
    used_ -= found->second;
    segments.erase(found);
  }
  Room Memory() override { return {total_ - used_, total_}; }

  std::map<char*, int64_t> segments;
  int allocations = 0;
  bool broken = false;

 private:
  int64_t total_, used_ = 0;
  char* next_ = reinterpret_cast<char*>(int64_t{1} << 40);
};

// Checks what must always hold. Blocks cover the segments, no two free neighbours remain, and the
// statistics match the blocks.
void CheckWhole(const Pool& pool, const FakeDevice& device) {
  int64_t reserved = 0, allocated = 0, largest_free = 0;
  for (const auto& [begin, bytes] : device.segments) reserved += bytes;
  char* end = nullptr;
  const Pool::Block* before = nullptr;
  const std::vector<Pool::Block> blocks = pool.Blocks();
  for (const Pool::Block& block : blocks) {
    ASSERT_GT(block.bytes, 0);
    ASSERT_EQ(block.bytes % 512, 0);
    const auto segment = device.segments.find(block.segment);
    ASSERT_NE(segment, device.segments.end());
    if (block.begin == block.segment) {
      if (before != nullptr) {
        ASSERT_EQ(end, before->segment + device.segments.at(before->segment));
      }
    } else {
      ASSERT_EQ(block.begin, end);
      ASSERT_EQ(block.segment, before->segment);
      ASSERT_TRUE(block.used || before->used) << "free neighbours";
    }
    end = block.begin + block.bytes;
    if (block.used) allocated += block.bytes;
    if (!block.used) largest_free = std::max(largest_free, block.bytes);
    reserved -= block.bytes;
    before = &block;
  }
  ASSERT_EQ(reserved, 0);
  const PoolStatistics s = pool.Statistics();
  ASSERT_EQ(s.allocated, allocated);
  ASSERT_EQ(s.largest_free, largest_free);
  ASSERT_EQ(s.segments, static_cast<int64_t>(device.segments.size()));
  ASSERT_GE(s.peak_allocated, s.allocated);
  ASSERT_GE(s.reserved, s.allocated);
  ASSERT_GE(s.peak_reserved, s.reserved);
}

TEST(Pool, SmallRequestsShareSegments) {
  FakeDevice device(100 * kMiB);
  Pool pool(device);
  char* a = static_cast<char*>(pool.Allocate(1));
  char* b = static_cast<char*>(pool.Allocate(513));
  char* c = static_cast<char*>(pool.Allocate(0));
  EXPECT_EQ(b, a + 512);
  EXPECT_EQ(c, b + 1024);
  const PoolStatistics s = pool.Statistics();
  EXPECT_EQ(s.allocated, 2048);
  EXPECT_EQ(s.reserved, 2 * kMiB);
  EXPECT_EQ(s.segments, 1);
  EXPECT_EQ(s.allocations, 3);
  char* large = static_cast<char*>(pool.Allocate(kMiB + 1));
  EXPECT_EQ(pool.Statistics().segments, 2);
  EXPECT_EQ(device.segments.rbegin()->second, 20 * kMiB);
  EXPECT_EQ(large, device.segments.rbegin()->first);
  CheckWhole(pool, device);
}

TEST(Pool, TakesTheSmallestBlockThatFits) {
  FakeDevice device(1000 * kMiB);
  Pool pool(device);
  void* const forty = pool.Allocate(40 * kMiB);
  void* const twenty_two = pool.Allocate(22 * kMiB);
  void* const thirty = pool.Allocate(30 * kMiB);
  for (void* block : {forty, twenty_two, thirty}) pool.Free(block);
  EXPECT_EQ(pool.Allocate(21 * kMiB + 5), twenty_two);
  EXPECT_EQ(pool.Allocate(22 * kMiB), thirty);
  EXPECT_EQ(pool.Allocate(22 * kMiB), forty);
  EXPECT_EQ(pool.Allocate(18 * kMiB), static_cast<char*>(forty) + 22 * kMiB);
  EXPECT_EQ(pool.Allocate(8 * kMiB), static_cast<char*>(thirty) + 22 * kMiB);
  EXPECT_EQ(device.allocations, 3);
  CheckWhole(pool, device);
}

TEST(Pool, MergesNeighboursInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    FakeDevice device(100 * kMiB);
    Pool pool(device);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(pool.Allocate(5 * kMiB));
    EXPECT_EQ(pool.Statistics().largest_free, 0);
    for (int i : order) {
      pool.Free(blocks[static_cast<size_t>(i)]);
      CheckWhole(pool, device);
    }
    EXPECT_EQ(pool.Statistics().largest_free, 20 * kMiB);
    EXPECT_EQ(pool.Allocate(20 * kMiB), blocks[0]);
    EXPECT_EQ(device.allocations, 1);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Pool, GivesFreeSegmentsBackAndRetries) {
  FakeDevice device(64 * kMiB);
  Pool pool(device);
  void* const kept = pool.Allocate(100);
  pool.Free(pool.Allocate(24 * kMiB));
  pool.Free(pool.Allocate(30 * kMiB));
  EXPECT_EQ(pool.Statistics().segments, 3);
  EXPECT_NE(pool.Allocate(40 * kMiB), nullptr);
  const PoolStatistics s = pool.Statistics();
  EXPECT_EQ(s.retries, 1);
  EXPECT_EQ(s.segments, 2);
  EXPECT_EQ(s.reserved, 42 * kMiB);
  EXPECT_EQ(s.peak_reserved, 56 * kMiB);
  EXPECT_EQ(s.allocated, 40 * kMiB + 512);
  CheckWhole(pool, device);
  pool.Free(kept);
  pool.ReleaseFreeSegments();
  EXPECT_EQ(device.segments.size(), 1u);
}

// If a segment of the usual size finds no room, the pool takes one that just suffices.
TEST(Pool, TakesSmallerSegmentsWhereRoomIsScarce) {
  FakeDevice device(10 * kMiB);
  Pool pool(device);
  EXPECT_NE(pool.Allocate(7 * kMiB), nullptr);
  EXPECT_EQ(pool.Statistics().reserved, 8 * kMiB);
  EXPECT_EQ(pool.Statistics().retries, 0);
}

TEST(Pool, SmallRequestsFindRoomAmongLargeOnes) {
  FakeDevice device(20 * kMiB);
  Pool pool(device);
  char* const large = static_cast<char*>(pool.Allocate(12 * kMiB));
  char* const small = static_cast<char*>(pool.Allocate(1024));
  EXPECT_EQ(small, large + 12 * kMiB);
  char* const next = static_cast<char*>(pool.Allocate(512));
  EXPECT_EQ(device.allocations, 5);  // one of 20 MiB, and four vain attempts at 2 MiB
  CheckWhole(pool, device);
  for (void* block : {small, next, large}) pool.Free(block);
  CheckWhole(pool, device);
  EXPECT_EQ(pool.Allocate(20 * kMiB), large);
  CheckWhole(pool, device);
}

TEST(Pool, SaysWhyThereIsNoRoom) {
  FakeDevice device(64 * kMiB);
  Pool pool(device);
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(pool.Allocate(5 * kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) pool.Free(blocks[i]);
  try {
    pool.Allocate(10 * kMiB);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(
        e.message(),
        "[cuda] out of memory: a tensor asked for 10.0 MiB; tensors use 30.0 MiB (60.0 MiB at "
        "most so far), 60.0 MiB are reserved in 3 segments, 4.0 MiB of the device's 64.0 MiB "
        "are free; the largest free piece of the reserved memory has 5.0 MiB");
    for (const char* way :
         {"smaller batch", "shorter sequences", "mixed precision", "gradient checkpointing"}) {
      EXPECT_NE(e.hint().find(way), std::string::npos) << e.hint();
    }
  }
  CheckWhole(pool, device);
  const auto error_of = [&] {
    try {
      pool.Allocate(10 * kMiB);
    } catch (const Error& e) {
      return e.message().substr(0, e.message().find(';')) + "|" + e.hint().substr(0, 10);
    }
    return std::string("no error");
  };
  {
    const AllocationTag allocation_tag = AllocationTag::Backward("attention");
    EXPECT_EQ(error_of(),
              "[cuda] out of memory: attention (backward) asked for 10.0 MiB|use a smal");
    const AllocationTag gradients = AllocationTag::State("gradients");
    EXPECT_EQ(error_of(),
              "[cuda] out of memory: gradients in attention (backward) asked for 10.0 "
              "MiB|parameters");
  }
  {
    const AllocationTag allocation_tag = AllocationTag::Op("linear");
    EXPECT_EQ(error_of(), "[cuda] out of memory: linear (forward) asked for 10.0 MiB|use a smal");
    const NoGradGuard evaluation;
    EXPECT_EQ(error_of(), "[cuda] out of memory: linear (forward) asked for 10.0 MiB|use smalle");
  }
  EXPECT_EQ(error_of(), "[cuda] out of memory: a tensor asked for 10.0 MiB|use a smal");
  EXPECT_NE(pool.Allocate(5 * kMiB), nullptr);  // the pool still works
  try {
    pool.Allocate(kMiB << 30);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(e.message().find("pieces"), std::string::npos);
  }
  EXPECT_THROW(pool.Allocate(-1), Error);
}

TEST(Pool, AnErrorOfTheDeviceLeavesItWhole) {
  FakeDevice device(64 * kMiB);
  Pool pool(device);
  void* const block = pool.Allocate(3 * kMiB);
  device.broken = true;
  EXPECT_THROW(pool.Allocate(32 * kMiB), Error);
  EXPECT_NE(pool.Allocate(3 * kMiB), nullptr);  // from the segment that is there
  pool.Free(block);
  CheckWhole(pool, device);
}

TEST(Pool, PeaksStartAnew) {
  FakeDevice device(64 * kMiB);
  Pool pool(device);
  pool.Free(pool.Allocate(30 * kMiB));
  EXPECT_EQ(pool.Statistics().peak_allocated, 30 * kMiB);
  pool.ReleaseFreeSegments();
  pool.ResetPeaks();
  EXPECT_EQ(pool.Statistics().peak_allocated, 0);
  EXPECT_EQ(pool.Statistics().peak_reserved, 0);
  pool.Free(nullptr);
}

// Random sequences of requests never give overlapping blocks, compared with a list of used ones.
TEST(Pool, BlocksNeverOverlap) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    FakeDevice device(300 * kMiB);
    Pool pool(device);
    std::map<char*, int64_t> used;
    int64_t failures = 0;
    for (int step = 0; step < 3000; ++step) {
      const bool grows = random() % 100 < (step / 500 % 2 == 0 ? 60u : 45u);
      if (grows || used.empty()) {
        const int magnitude = static_cast<int>(random() % 26);
        const auto bytes = static_cast<int64_t>(random() % (2u << magnitude));
        char* begin = nullptr;
        try {
          begin = static_cast<char*>(pool.Allocate(bytes));
        } catch (const Error& e) {
          ASSERT_EQ(e.code(), absl::StatusCode::kResourceExhausted);
          ++failures;
          continue;
        }
        ASSERT_EQ(reinterpret_cast<uintptr_t>(begin) % 512, 0u);
        const auto after = used.lower_bound(begin);
        if (after != used.end()) {
          ASSERT_LE(begin + bytes, after->first);
        }
        if (after != used.begin()) {
          const auto before = std::prev(after);
          ASSERT_GE(begin, before->first + std::max<int64_t>(before->second, 1));
        }
        used[begin] = bytes;
      } else {
        const auto which = std::next(used.begin(), static_cast<long>(random() % used.size()));
        pool.Free(which->first);
        used.erase(which);
      }
      if (step % 50 == 0) CheckWhole(pool, device);
      if (step % 700 == 0) pool.ReleaseFreeSegments();
    }
    EXPECT_GT(failures, 0);
    EXPECT_GT(pool.Statistics().retries, 0);
    for (const auto& [begin, bytes] : used) pool.Free(begin);
    CheckWhole(pool, device);
    EXPECT_EQ(pool.Statistics().allocated, 0);
    pool.ReleaseFreeSegments();
    EXPECT_EQ(pool.Statistics().reserved, 0);
    EXPECT_TRUE(device.segments.empty());
  }
}

TEST(Pool, ThreadsShareIt) {
  FakeDevice device(2000 * kMiB);
  Pool pool(device);
  std::mutex mutex;
  std::map<char*, int64_t> used;
  std::atomic<int> overlaps = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<char*> mine;
      for (int i = 0; i < 2000; ++i) {
        if (mine.size() < 20 && random() % 2 == 0) {
          const int64_t bytes = 1 + static_cast<int64_t>(random() % (4u << 20));
          mine.push_back(static_cast<char*>(pool.Allocate(bytes)));
          const std::lock_guard lock(mutex);
          if (!used.emplace(mine.back(), bytes).second) ++overlaps;
        } else if (!mine.empty()) {
          {
            const std::lock_guard lock(mutex);
            used.erase(mine.back());
          }
          pool.Free(mine.back());
          mine.pop_back();
        }
      }
      for (char* block : mine) {
        {
          const std::lock_guard lock(mutex);
          used.erase(block);
        }
        pool.Free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(overlaps, 0);
  EXPECT_EQ(pool.Statistics().allocated, 0);
  CheckWhole(pool, device);
}

}  // namespace
}  // namespace lathe::cuda
