#include "lathe/core/base/working_memory.h"

#include <absl/status/status.h>

#include <cstdlib>

#include "lathe/core/base/error.h"

namespace lathe::cpu {
namespace {

struct Block {
  ~Block() {
    std::free(data);
    data = nullptr;
    bytes = 0;  // the thread's other objects may be destroyed later and ask for memory again
  }
  bool Reserve(size_t wanted) {
    if (bytes >= wanted) return true;
    std::free(data);
    // Rounding up an absurd size would overflow and give a small one.
    data = wanted > SIZE_MAX - 64 ? nullptr : std::aligned_alloc(64, (wanted + 63) / 64 * 64);
    bytes = data == nullptr ? 0 : wanted;
    return data != nullptr;
  }
  void* data = nullptr;
  size_t bytes = 0;
};

thread_local Block block;

Error OutOfMemory(size_t bytes) {
  return Error(absl::StatusCode::kResourceExhausted,
               "[kernel] out of memory: a thread needs " + std::to_string(bytes) +
                   " bytes of working memory",
               "use a smaller batch or shorter sequences");
}

}  // namespace

void* WorkingMemory(size_t bytes) {
  if (!block.Reserve(bytes)) throw OutOfMemory(bytes);
  return block.data;
}

size_t WorkingMemorySize() { return block.bytes; }

void ReserveWorkingMemory(size_t bytes) {
  bool all = true;
#pragma omp parallel reduction(&& : all)
  all = block.Reserve(bytes);
  if (!all) throw OutOfMemory(bytes);
}

}  // namespace lathe::cpu
