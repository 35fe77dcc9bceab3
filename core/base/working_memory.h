// Working memory of kernels, one block per thread.
#pragma once

#include <cstddef>

namespace lathe::cpu {

// Returns this thread's block: at least `bytes`, aligned to a cache line, with any contents. It is
// kept for the next call, because fresh pages would cost more than the work on them. Each call
// takes the block away from the caller before. Throws ResourceExhausted if memory is lacking.
void* WorkingMemory(size_t bytes);

// Returns the size of this thread's block in bytes.
size_t WorkingMemorySize();

// Makes sure that WorkingMemory(bytes) does not throw inside the next parallel region, where
// nothing may throw. Throws here if a thread of that region would get no memory. This function runs
// a parallel region of its own; the next one has the same threads, unless OMP_DYNAMIC changes that.
void ReserveWorkingMemory(size_t bytes);

}  // namespace lathe::cpu
