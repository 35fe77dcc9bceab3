// The chunks of an arena that a kernel's blocks work on, for updates of parameters.
#pragma once

#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/kernels/optimizer_kernels.h"

namespace lathe::cuda {

__device__ inline bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// The elements of the arena that a block works on.
struct Chunk {
  int64_t range;     // index of its range
  int64_t begin, n;  // in the arena
};

// Finds chunk number `chunk` by bisection of the ranges.
__device__ inline Chunk FindChunk(const DeviceRange* ranges, int64_t count, int64_t chunk) {
  int64_t low = 0, high = count;  // [low, high) contains the last range with first_chunk <= chunk
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (ranges[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const DeviceRange& range = ranges[low];
  const int64_t skip = (chunk - range.first_chunk) * kDeviceChunk;
  return {low, range.begin + skip, min(kDeviceChunk, range.n - skip)};
}

// ForChunk calls update(i, Width<4>{}) for every four elements of a chunk if all pointers are
// aligned for that. It calls update(i, Width<1>{}) for each of the others.
template <int N>
struct Width {
  static constexpr int value = N;
};
template <typename Update>
__device__ void ForChunk(int64_t n, bool aligned, Update update) {
  const int64_t packed = aligned ? n / 4 * 4 : 0;
  for (int64_t i = threadIdx.x * 4; i < packed; i += kBlock * 4) update(i, Width<4>{});
  for (int64_t i = packed + threadIdx.x; i < n; i += kBlock) update(i, Width<1>{});
}

__device__ inline bool AlignedTo(uintptr_t bytes, const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Calls body(T{}) with the type of the narrow copies.
template <typename Body>
void DispatchNarrow(const char* op, DType type, Body body) {
  if (type == DType::kBF16) return body(BFloat16{});
  Check(type == DType::kF16, op, "copies must be bfloat16 or float16 but are ", ToString(type));
  body(Float16{});
}

}  // namespace lathe::cuda
