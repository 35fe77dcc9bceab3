// Host storage with a pool, because a training step requests the same sizes again and again.
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lathe/core/base/round_up.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/pages.h"
#include "lathe/core/tensor.h"

namespace lathe {
namespace {

constexpr int64_t kAlignment = 64;

Error OutOfMemory(int64_t size) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("[tensor] out of memory: a tensor needs ", size, " bytes"),
               "use a smaller batch or shorter sequences");
}

// A heap of reserved addresses. Each block gets the lowest place with room for it, and free
// neighbours are merged. So batches of all lengths share the memory that the largest one needs.
class Heap {
 public:
  // `size` is a multiple of kPageBytes.
  char* Allocate(int64_t size) {
    auto found = std::find_if(free_.begin(), free_.end(),
                              [size](const auto& part) { return part.second >= size; });
    if (found == free_.end()) found = Grow(size);
    const auto [begin, available] = *found;
    free_.erase(found);
    if (available > size) free_.emplace(begin + size, available - size);
    return begin;
  }

  void Free(char* begin, int64_t size) {
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == begin + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        before->second += size;
        return;
      }
    }
    free_.emplace_hint(next, begin, size);
  }

 private:
  using Parts = std::map<char*, int64_t>;  // sizes by begin address

  // Extends the heap and returns a free part of at least `size` bytes at its end.
  Parts::iterator Grow(int64_t size) {
    const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
    const bool extends = last != free_.end() && last->first + last->second == top_;
    const int64_t more = RoundUp(size - (extends ? last->second : 0), kHugePageBytes);
    if (more > limit_ - top_) {
      // Addresses cost nothing, so reserve 1 TiB. If the process may not, reserve what is needed,
      // at least 64 MiB.
      constexpr int64_t kMany = int64_t{1} << 40, kFew = int64_t{64} << 20;
      int64_t mapped = std::max(kMany, RoundUp(size, kHugePageBytes));
      char* begin = MapPages(mapped);
      if (begin == nullptr) {
        mapped = std::max(RoundUp(size, kHugePageBytes), kFew);
        begin = MapPages(mapped);
      }
      if (begin == nullptr) throw OutOfMemory(size);
      if (limit_ > top_) Free(top_, limit_ - top_);
      top_ = begin;
      limit_ = begin + mapped;
      return Grow(size);
    }
    top_ += more;
    Free(top_ - more, more);
    return std::prev(free_.upper_bound(top_ - 1));
  }

  Parts free_;
  char* top_ = nullptr;  // the end of what was handed out so far
  char* limit_ = nullptr;
};

// Small blocks are kept by size; larger ones come from a heap. Large blocks that must be zeroed
// (whole arenas, which are allocated once) are fresh pages of the system and are returned to it.
// Other blocks are not, because a step of long texts would spend half its time on fresh pages.
class HostPool {
 public:
  // Never destroyed: tensors in static variables may outlive any static pool.
  static HostPool& Get() {
    static HostPool* pool = new HostPool;
    return *pool;
  }

  // Returns the size of the block for `bytes` bytes.
  static int64_t SizeFor(int64_t bytes) {
    return RoundUp(std::max<int64_t>(bytes, 1), bytes <= kSmall ? kAlignment : kPageBytes);
  }
  // Returns true if a block of this size consists of whole pages.
  static bool HasPages(int64_t size) { return size > kSmall; }
  // Returns true if the block comes straight from the system.
  static bool IsFresh(int64_t size, bool zeroed) { return zeroed && size > kLargestOfHeap; }

  void* Allocate(int64_t size, bool fresh) {
    if (fresh) {
      void* block = MapPages(size);
      if (block == nullptr) throw OutOfMemory(size);
      return block;
    }
    std::lock_guard lock(mutex_);
    if (HasPages(size)) return heap_.Allocate(size);
    std::vector<void*>& kept = small_[size];
    if (!kept.empty()) {
      void* block = kept.back();
      kept.pop_back();
      return block;
    }
    void* block = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (block == nullptr) throw OutOfMemory(size);
    return block;
  }

  void Free(void* block, int64_t size, bool fresh) {
    if (fresh) {
      munmap(block, static_cast<size_t>(size));
      return;
    }
    std::lock_guard lock(mutex_);
    if (HasPages(size)) {
      heap_.Free(static_cast<char*>(block), size);
    } else {
      small_[size].push_back(block);
    }
  }

 private:
  static constexpr int64_t kSmall = int64_t{32} << 10, kLargestOfHeap = int64_t{64} << 20;

  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> small_;
  Heap heap_;
};

std::atomic<int64_t> bytes_now = 0, bytes_peak = 0;

void CountBytes(int64_t bytes) {
  const int64_t now = bytes_now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = bytes_peak.load(std::memory_order_relaxed);
  while (now > peak && !bytes_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

class HostStorage : public Storage {
 public:
  HostStorage(int64_t bytes, int64_t size, bool zeroed)
      : Storage(HostPool::Get().Allocate(size, HostPool::IsFresh(size, zeroed)), bytes),
        size_(size),
        fresh_(HostPool::IsFresh(size, zeroed)) {
    CountBytes(size_);
    if (zeroed && !fresh_) std::memset(data_, 0, static_cast<size_t>(bytes));
  }
  void ExpectSparseUse(int64_t offset, int64_t bytes) override {
    if (!fresh_) return;
    const int64_t begin = RoundUp(offset, kPageBytes),
                  end = (offset + bytes) / kPageBytes * kPageBytes;
    if (begin >= end) return;
    madvise(static_cast<char*>(data_) + begin, static_cast<size_t>(end - begin), MADV_NOHUGEPAGE);
  }
  int64_t shareable_bytes() const override { return HostPool::HasPages(size_) ? size_ : 0; }
  void MapShared(void* pages, int64_t bytes, Sharing sharing) override {
    if (!TakePages(pages, bytes)) throw OutOfMemory(bytes);
    sharing_ = sharing;
  }
  void Unshare() override {
    if (arrivals_ != nullptr) arrivals_->AwaitEnd();
    arrivals_ = nullptr;
    if (sharing_ == Sharing::kNone) return;
    void* const pages = MapPages(size_);
    if (pages == nullptr) throw OutOfMemory(size_);
    std::memcpy(pages, data_, static_cast<size_t>(bytes_));
    if (!TakePages(pages, size_)) throw OutOfMemory(size_);
    sharing_ = Sharing::kNone;
  }
  ~HostStorage() override {
    CountBytes(-size_);
    if (sharing_ != Sharing::kNone && !fresh_) {
      // The heap hands these addresses out again. Better to lose them than to let others share the
      // memory.
      char* const pages = MapPages(size_);
      if (pages == nullptr || !TakePages(pages, size_)) return;
    }
    HostPool::Get().Free(data_, size_, fresh_);
  }

 private:
  // Moves `pages` to this storage's address. Returns false, and unmaps them, if there is no room.
  bool TakePages(void* pages, int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    if (mremap(pages, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == data_) return true;
    munmap(pages, size);
    return false;
  }

  int64_t size_;
  bool fresh_;
};

}  // namespace

MemoryUse TensorMemory(Device device) {
  if (!device.is_cpu()) return BackendOf(device).Memory(device.index);
  return {bytes_now.load(), bytes_peak.load()};
}

void ResetPeakMemory(Device device) {
  if (!device.is_cpu()) return BackendOf(device).ResetPeakMemory(device.index);
  bytes_peak = bytes_now.load();
}

std::shared_ptr<Storage> Storage::Allocate(int64_t bytes, Device device, bool zeroed) {
  if (!device.is_cpu()) {
    return BackendOf(device).Allocate(bytes, device.index, zeroed);
  }
  return std::make_shared<HostStorage>(bytes, HostPool::SizeFor(bytes), zeroed);
}

}  // namespace lathe
