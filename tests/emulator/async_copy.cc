// Asynchronous copies to shared memory. They arrive at once or when the thread waits for them.
#include <cuda_runtime.h>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {
namespace {

void Arrive(const AsyncCopy& copy) {
  std::memset(copy.to, 0, 16);
  std::memcpy(copy.to, copy.from, copy.bytes);
}

}  // namespace

void CopyAsync(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) std::abort();
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
  const AsyncCopy copy = {to, from, bytes, current->copy_groups};
  if (ComesEarly()) return Arrive(copy);
  current->copies.push_back(copy);
}

void CommitCopies() { ++current->copy_groups; }

void WaitForCopies(unsigned groups) {
  std::erase_if(current->copies, [groups](const AsyncCopy& copy) {
    if (copy.group + groups >= current->copy_groups) return false;
    Arrive(copy);
    return true;
  });
}

}  // namespace lathe::emulator
