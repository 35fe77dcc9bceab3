// Numbers in kernels. There are loads and stores of the three activation types as float, and sums
// over warps and blocks in a fixed order. Dropout's random bits are the same as on the CPU.
#pragma once

#include <cuda_runtime.h>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/cpu/dropout.h"

namespace lathe::cuda {

__device__ inline float Load(const float& x) { return x; }
__device__ inline float Load(const BFloat16& x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ inline void Store(float& to, float x) { to = x; }
// Rounds to nearest, ties to even. NaN stays NaN.
__device__ inline void Store(BFloat16& to, float x) {
  const uint32_t u = __float_as_uint(x);
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  to.bits = static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : rounded);
}
#ifdef __CUDACC__
__device__ inline float Load(const Float16& x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline void Store(Float16& to, float x) {
  to.bits = __half_as_ushort(__float2half_rn(x));
}
#else
inline float Load(const Float16& x) { return x; }
inline void Store(Float16& to, float x) { to = Float16(x); }
#endif

constexpr unsigned kFullWarp = 0xffffffffu;

// Returns the sum over a warp's 32 lanes to every lane. All lanes must call this.
template <typename T>
__device__ inline T WarpSum(T x) {
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(kFullWarp, x, by);
  return x;
}
// Returns the largest value of the warp, or NaN if there is one.
__device__ inline float WarpMax(float x) {
  for (int by = 16; by > 0; by /= 2) {
    const float other = __shfl_xor_sync(kFullWarp, x, by);
    x = other <= x ? x : x != x ? x : other;
  }
  return x;
}
// Returns the sum over a block of whole warps along x to every thread. All threads must call this.
// scratch: 32 elements in shared memory, free for other use after the next __syncthreads().
template <typename T>
__device__ inline T BlockSum(T x, T* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  x = WarpSum(x);
  __syncthreads();  // earlier readers of scratch are done
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  T sum = T(0);
  for (int w = 0; w < warps; ++w) sum += scratch[w];
  return sum;
}

// Returns the mask with its present step, which may lie on the device.
__device__ inline cpu::DropoutMask WithCurrentStep(cpu::DropoutMask mask) {
  if (mask.device_step != nullptr) mask.step = static_cast<uint32_t>(*mask.device_step);
  return mask;
}
// Returns dropout's bits of columns b, nb + b, 2 nb + b and 3 nb + b of a row of n columns, with nb
// = ceil(n / 4).
__device__ inline PhiloxBlock DropoutBits(const cpu::DropoutMask& mask, int32_t sample,
                                          int32_t position, uint32_t b) {
  return Philox4x32(
      {{b, static_cast<uint32_t>(position), static_cast<uint32_t>(sample), mask.step}}, mask.key0,
      mask.key1);
}

}  // namespace lathe::cuda
