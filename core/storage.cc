// Host storage with a pool: a training step asks for the same sizes again and again.
#include <absl/strings/str_cat.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {
namespace {

constexpr int64_t kAlignment = 64;

// Sizes are rounded up to four steps an octave, so that blocks are found again for batches of
// slightly different lengths at the price of at most a quarter of unused memory.
int64_t SizeClass(int64_t bytes) {
  if (bytes <= 4 * kAlignment) return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes - 1))) / 4;
  return (bytes + step - 1) / step * step;
}

constexpr int64_t kHugePage = int64_t{2} << 20;

Error OutOfMemory(int64_t size) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("[tensor] out of memory: ", size, " bytes asked for"),
               "use a smaller batch or shorter sequences");
}

// Fresh pages, zeroed, in huge ones where the system has them: they are read half as fast again as
// small ones and come into being several times as fast.
void* MapPages(int64_t size) {
  const auto bytes = static_cast<size_t>(size + kHugePage);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory(size);
  char* begin = static_cast<char*>(mapped);
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kHugePage);
  const int64_t skipped = past == 0 ? 0 : kHugePage - past;
  if (skipped > 0) munmap(begin, static_cast<size_t>(skipped));
  munmap(begin + skipped + size, static_cast<size_t>(kHugePage - skipped));
  madvise(begin + skipped, static_cast<size_t>(size), MADV_HUGEPAGE);
  return begin + skipped;
}

class HostPool {
 public:
  // Never destroyed: tensors in static variables may outlive any static pool.
  static HostPool& Get() {
    static HostPool* pool = new HostPool;
    return *pool;
  }

  // `size` is a size class. Blocks above kLargestKept are zeroed.
  void* Allocate(int64_t size) {
    if (size > kLargestKept) return MapPages(size);
    std::lock_guard lock(mutex_);
    auto found = free_.find(size);
    if (found != free_.end() && !found->second.empty()) {
      void* block = found->second.back();
      found->second.pop_back();
      return block;
    }
    if (size > kSlab / 2) return MapPages(size);
    if (size >= kSmallestOfSlab) return Carve(size);
    void* block = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (block == nullptr) throw OutOfMemory(size);
    return block;
  }

  void Free(void* block, int64_t size) {
    // Very large blocks (a whole arena) come once; keeping them would only hold memory.
    if (size > kLargestKept) {
      munmap(block, static_cast<size_t>(size));
      return;
    }
    std::lock_guard lock(mutex_);
    free_[size].push_back(block);
  }

  static constexpr int64_t kLargestKept = int64_t{256} << 20;

 private:
  static constexpr int64_t kSlab = int64_t{32} << 20, kSmallestOfSlab = int64_t{64} << 10;

  // The next part of a slab; what is left of one that is too small for it is never touched.
  void* Carve(int64_t size) {
    if (size > slab_left_) {
      slab_ = static_cast<char*>(MapPages(kSlab));
      slab_left_ = kSlab;
    }
    slab_left_ -= size;
    return std::exchange(slab_, slab_ + size);
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_;
  char* slab_ = nullptr;
  int64_t slab_left_ = 0;
};

class HostStorage : public Storage {
 public:
  HostStorage(int64_t bytes, int64_t size, bool zeroed)
      : Storage(HostPool::Get().Allocate(size), bytes), size_(size) {
    if (zeroed && size <= HostPool::kLargestKept) std::memset(data_, 0, static_cast<size_t>(bytes));
  }
  ~HostStorage() override { HostPool::Get().Free(data_, size_); }

 private:
  int64_t size_;
};

}  // namespace

std::shared_ptr<Storage> Storage::Allocate(int64_t bytes, Device device, bool zeroed) {
  Check(device.type == DeviceType::kCPU, "tensor", "no storage on ", ToString(device),
        ": this build has the CPU only");
  return std::make_shared<HostStorage>(bytes, SizeClass(std::max<int64_t>(bytes, 1)), zeroed);
}

}  // namespace lathe
