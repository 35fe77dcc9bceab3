// Asynchronous copies to shared memory: they arrive when the thread waits for them, not before.
#include <cuda_runtime.h>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {

void CopyAsync(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) std::abort();
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
  current->copies.push_back({to, from, bytes, current->copy_groups});
}

void CommitCopies() { ++current->copy_groups; }

void WaitForCopies(unsigned groups) {
  std::erase_if(current->copies, [groups](const AsyncCopy& copy) {
    if (copy.group + groups >= current->copy_groups) return false;
    std::memset(copy.to, 0, 16);
    std::memcpy(copy.to, copy.from, copy.bytes);
    return true;
  });
}

}  // namespace lathe::emulator
