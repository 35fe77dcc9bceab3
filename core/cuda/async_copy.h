// Asynchronous copies from global to shared memory. The thread computes while they go on.
//
//   CopyAsync(to, from, true);  // any number of copies
//   CommitCopies();             // the copies since the last commit are one group
//   WaitForCopies<1>();         // all groups of this thread but the latest have arrived
//   __syncthreads();            // and so have those of the block's other threads
#pragma once

#include <cstdint>

#include "lathe/core/cuda/numeric.h"

namespace lathe::cuda {

#ifdef __CUDACC__

// Copies 16 bytes. Both addresses are multiples of 16. If not `valid`, writes zeros and doesn't
// read `from`.
__device__ inline void CopyAsync(void* to, const void* from, bool valid) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int kGroups>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
}

#else

inline void CopyAsync(void* to, const void* from, bool valid) {
  emulator::CopyAsync(to, from, valid ? 16 : 0);
}
inline void CommitCopies() { emulator::CommitCopies(); }
template <int kGroups>
void WaitForCopies() {
  emulator::WaitForCopies(kGroups);
}

#endif

}  // namespace lathe::cuda
