#include "lathe/core/cuda/runtime/staging.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

namespace lathe::cuda {
namespace {

// A device that runs nothing until it must. So the tests notice memory that changes too early.
class LateQueue : public CopyQueue {
 public:
  void* AllocatePinned(int64_t bytes) override {
    if (!has_pinned) return nullptr;
    pinned.resize(static_cast<size_t>(bytes) + 256);
    const auto past = reinterpret_cast<uintptr_t>(pinned.data()) % 256;
    return pinned.data() + (256 - past);
  }
  void Copy(void* to, const void* from, int64_t bytes, Direction) override {
    const std::lock_guard lock(mutex_);
    largest = std::max(largest, bytes);
    queued_.push_back({to, from, bytes});
  }
  Mark NewMark() override {
    places_.push_back(std::make_unique<Place>());
    return places_.back().get();
  }
  void Record(Mark mark) override {
    const std::lock_guard lock(mutex_);
    *static_cast<Place*>(mark) = {this, done_ + queued_.size()};
  }
  void Wait(Mark mark) override {
    const std::lock_guard lock(mutex_);
    ++waits;
    RunUntil(static_cast<Place*>(mark)->position);
  }
  void Synchronize() override {
    const std::lock_guard lock(mutex_);
    RunUntil(done_ + queued_.size());
  }
  void* AllocateOnDevice(int64_t bytes) override {
    if (!has_device_memory) return nullptr;
    device.resize(static_cast<size_t>(bytes));
    return device.data();
  }
  void CopyOnDevice(void* to, const void* from, int64_t bytes) override {
    Copy(to, from, bytes, Direction::kToDevice);
  }
  void WaitOnDevice(Mark mark) override {
    const std::lock_guard lock(mutex_);
    queued_.push_back({.after = *static_cast<Place*>(mark)});
  }
  // Runs up to n queued items, but stops at one that waits for another queue.
  void RunSome(size_t n) {
    const std::lock_guard lock(mutex_);
    for (; n > 0 && !queued_.empty() && queued_.front().after.IsDone(); --n) RunOne();
  }

  bool has_pinned = true, has_device_memory = true;
  std::vector<char> pinned, device;
  int64_t largest = 0;
  int waits = 0;
  size_t marks() const { return places_.size(); }

 private:
  struct Place {
    LateQueue* queue = nullptr;  // null: not recorded yet
    size_t position = 0;
    bool IsDone() const { return queue == nullptr || queue->done_ >= position; }
  };
  struct Queued {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
    Place after = {};  // usually in another queue
  };
  void RunUntil(size_t position) {
    while (done_ < position) {
      const Place after = queued_.front().after;
      if (!after.IsDone()) after.queue->RunUntil(after.position);
      RunOne();
    }
  }
  void RunOne() {
    const Queued next = queued_.front();
    queued_.pop_front();
    if (next.bytes > 0) std::memcpy(next.to, next.from, static_cast<size_t>(next.bytes));
    ++done_;
  }
  std::mutex mutex_;
  std::deque<Queued> queued_;
  size_t done_ = 0;
  std::vector<std::unique_ptr<Place>> places_;
};

std::vector<char> Random(std::mt19937& random, size_t n) {
  std::vector<char> bytes(n);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(UploadRing, LetsTheHostGoOn) {
  LateQueue queue;
  UploadRing ring(queue, 1 << 16);
  std::vector<int> on_device(10);
  for (int i = 0; i < 10; ++i) {
    int value = i;
    ring.Copy(&on_device[static_cast<size_t>(i)], &value, sizeof(value));
    value = -1;
  }
  EXPECT_EQ(queue.waits, 0);
  EXPECT_EQ(on_device[9], 0) << "nothing has run";
  queue.Synchronize();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(on_device[static_cast<size_t>(i)], i);
  ring.Copy(nullptr, nullptr, 0);
}

TEST(UploadRing, WaitsOnlyWhenItIsFull) {
  LateQueue queue;
  UploadRing ring(queue, 4096);
  char from[256] = {}, to[256];
  for (int i = 0; i < 16; ++i) ring.Copy(to, from, 256);
  EXPECT_EQ(queue.waits, 0);
  ring.Copy(to, from, 1);
  EXPECT_EQ(queue.waits, 1);
  for (int i = 0; i < 1000; ++i) {
    ring.Copy(to, from, 100);
    queue.RunSome(1);
  }
  EXPECT_LE(queue.marks(), 17u) << "marks are used again";
}

TEST(UploadRing, KeepsBytesOfAllSizes) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    LateQueue queue;
    UploadRing ring(queue, 1 << 14);
    std::vector<std::vector<char>> expected, on_device;
    for (int i = 0; i < 200; ++i) {
      const size_t n = random() % (i % 10 == 0 ? 100000u : 3000u);
      std::vector<char> from = Random(random, n);
      expected.push_back(from);
      on_device.emplace_back(n);
      ring.Copy(on_device.back().data(), from.data(), static_cast<int64_t>(n));
      std::fill(from.begin(), from.end(), 'x');
      queue.RunSome(random() % 3);
    }
    queue.Synchronize();
    EXPECT_TRUE(on_device == expected) << seed;
    EXPECT_LE(queue.largest, 1 << 12);
  }
}

TEST(UploadRing, TakesAnyThread) {
  LateQueue queue;
  UploadRing ring(queue, 1 << 14);
  std::vector<std::thread> threads;
  std::vector<std::vector<int>> on_device(4, std::vector<int>(20000));
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        std::vector<int> from(100, t * 1000 + i);
        ring.Copy(&on_device[static_cast<size_t>(t)][static_cast<size_t>(i) * 100], from.data(),
                  400);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  queue.Synchronize();
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 20000; ++i) {
      ASSERT_EQ(on_device[static_cast<size_t>(t)][static_cast<size_t>(i)], t * 1000 + i / 100);
    }
  }
}

TEST(UploadRing, DoesWithoutPinnedMemory) {
  LateQueue queue;
  queue.has_pinned = false;
  UploadRing ring(queue, 4096);
  int value = 7, on_device = 0;
  ring.Copy(&on_device, &value, sizeof(value));
  value = 8;
  EXPECT_EQ(on_device, 7);
}

// All steps read the same place on the device. Each reads its own inputs, which arrive ahead of
// time, in whatever order the two queues run.
TEST(UploadPrefetcher, EachStepReadsItsOwnNumbers) {
  constexpr size_t kBytes = 512;
  int64_t ran_ahead = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    LateQueue work, ahead;
    UploadPrefetcher upload(work, ahead, kBytes);
    std::vector<std::vector<char>> expected, read;
    std::vector<char> input(kBytes);
    for (int step = 0; step < 60; ++step) {
      const size_t n = 1 + random() % kBytes;
      std::vector<char> from = Random(random, n);
      expected.push_back(from);
      read.emplace_back(n);
      ASSERT_TRUE(upload.Copy(input.data(), from.data(), static_cast<int64_t>(n)));
      std::fill(from.begin(), from.end(), 'x');
      // The step reads its inputs in three parts.
      const size_t third = n / 3;
      char* const to = read.back().data();
      work.CopyOnDevice(to, input.data(), static_cast<int64_t>(third));
      work.CopyOnDevice(to + third, input.data() + third, static_cast<int64_t>(third));
      work.CopyOnDevice(to + 2 * third, input.data() + 2 * third,
                        static_cast<int64_t>(n - 2 * third));
      for (int turn = 0; turn < 4; ++turn) {
        // The seed decides which of the two queues is faster.
        (random() % 8 < seed % 9 ? work : ahead).RunSome(random() % 4);
      }
      ran_ahead += std::memcmp(work.device.data() + step % 2 * static_cast<int64_t>(kBytes),
                               expected.back().data(), n) == 0 &&
                   std::memcmp(input.data(), expected.back().data(), n) != 0;
    }
    work.Synchronize();
    ASSERT_TRUE(read == expected) << seed;
  }
  EXPECT_GT(ran_ahead, 100) << "numbers lie on the device before their step begins";
}

TEST(UploadPrefetcher, TheHostGoesOn) {
  LateQueue work, ahead;
  UploadPrefetcher upload(work, ahead, 1 << 10);
  int input = 0;
  std::vector<int> read(40);
  for (int i = 0; i < 40; ++i) {
    const int value = i + 1;
    EXPECT_TRUE(upload.Copy(&input, &value, sizeof(value)));
    work.CopyOnDevice(&read[static_cast<size_t>(i)], &input, sizeof(input));
    ahead.RunSome(10);
  }
  EXPECT_EQ(work.waits + ahead.waits, 40 - 16) << "pinned memory of sixteen copies";
  work.Synchronize();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(read[static_cast<size_t>(i)], i + 1);
}

TEST(UploadPrefetcher, SaysWhatItCannotTake) {
  LateQueue work, ahead;
  UploadPrefetcher upload(work, ahead, 64);
  const std::vector<char> from(65, 'a');
  std::vector<char> to(65);
  EXPECT_FALSE(upload.Copy(to.data(), from.data(), 65));
  EXPECT_TRUE(upload.Copy(to.data(), from.data(), 0));
  LateQueue poor;
  poor.has_device_memory = false;
  UploadPrefetcher without(poor, ahead, 64);
  EXPECT_FALSE(without.Copy(to.data(), from.data(), 1));
  ahead.has_pinned = false;
  EXPECT_TRUE(upload.Copy(to.data(), from.data(), 64));
  work.Synchronize();
  EXPECT_TRUE(std::equal(from.begin(), from.begin() + 64, to.begin()));
}

TEST(DownloadBuffer, WaitsForAllThatIsQueued) {
  LateQueue queue;
  UploadRing ring(queue, 4096);
  DownloadBuffer buffer(queue, 4096);
  std::mt19937 random(1);
  for (const int64_t n : {0, 1, 100, 2047, 2048, 2049, 4096, 4097, 50000}) {
    const std::vector<char> expected = Random(random, static_cast<size_t>(n));
    std::vector<char> on_device(expected.size()), back(expected.size() + 1, 'x');
    ring.Copy(on_device.data(), expected.data(), n);
    buffer.Copy(back.data(), on_device.data(), n);
    EXPECT_EQ(back.back(), 'x');
    back.pop_back();
    EXPECT_TRUE(back == expected) << n;
  }
  int value = 3, on_device = 0;
  ring.Copy(&on_device, &value, sizeof(value));
  buffer.Copy(nullptr, nullptr, 0);
  EXPECT_EQ(on_device, 3) << "a copy of nothing waits, too";
}

TEST(DownloadBuffer, DoesWithoutPinnedMemory) {
  LateQueue queue;
  queue.has_pinned = false;
  DownloadBuffer buffer(queue, 4096);
  const std::vector<char> from(10000, 'a');
  std::vector<char> to(10000);
  buffer.Copy(to.data(), from.data(), 10000);
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace lathe::cuda
