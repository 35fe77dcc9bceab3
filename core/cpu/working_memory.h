// Memory that kernels work in, one block a thread.
#pragma once

#include <cstddef>

namespace lathe::cpu {

// This thread's block, of at least `bytes`, on a cache line's boundary; it holds anything. Kept for
// the next call: fresh pages would cost more than the work on them. Whoever asked before has it no
// more. Throws ResourceExhausted if there is none to be had.
void* WorkingMemory(size_t bytes);

// Of this thread's block.
size_t WorkingMemorySize();

// So that WorkingMemory(bytes) does not throw inside of the next parallel region, where nothing
// may: throws here if a thread of it would get none. (Its threads are those of the region before,
// unless OMP_DYNAMIC changes that.)
void ReserveWorkingMemory(size_t bytes);

}  // namespace lathe::cpu
