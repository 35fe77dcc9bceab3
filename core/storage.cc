// Host storage with a pool: a training step asks for the same sizes again and again.
#include <absl/strings/str_cat.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>

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

class HostPool {
 public:
  // Never destroyed: tensors in static variables may outlive any static pool.
  static HostPool& Get() {
    static HostPool* pool = new HostPool;
    return *pool;
  }

  void* Allocate(int64_t size) {
    {
      std::lock_guard lock(mutex_);
      auto found = free_.find(size);
      if (found != free_.end() && !found->second.empty()) {
        void* block = found->second.back();
        found->second.pop_back();
        return block;
      }
    }
    void* block = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (block == nullptr) {
      throw Error(absl::StatusCode::kResourceExhausted,
                  absl::StrCat("[tensor] out of memory: ", size, " bytes asked for"),
                  "use a smaller batch or shorter sequences");
    }
    return block;
  }

  void Free(void* block, int64_t size) {
    // Very large blocks (a whole arena) come once; keeping them would only hold memory.
    if (size > kLargestKept) {
      std::free(block);
      return;
    }
    std::lock_guard lock(mutex_);
    free_[size].push_back(block);
  }

 private:
  static constexpr int64_t kLargestKept = int64_t{64} << 20;
  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_;
};

class HostStorage : public Storage {
 public:
  explicit HostStorage(int64_t bytes, int64_t size)
      : Storage(HostPool::Get().Allocate(size), bytes), size_(size) {}
  ~HostStorage() override { HostPool::Get().Free(data_, size_); }

 private:
  int64_t size_;
};

}  // namespace

std::shared_ptr<Storage> Storage::Allocate(int64_t bytes, Device device) {
  Check(device.type == DeviceType::kCPU, "tensor", "no storage on ", ToString(device),
        ": this build has the CPU only");
  return std::make_shared<HostStorage>(bytes, SizeClass(std::max<int64_t>(bytes, 1)));
}

}  // namespace lathe
