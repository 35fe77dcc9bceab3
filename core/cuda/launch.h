// Launches kernels from .cu files, in one way for nvcc and for the emulator of tests/emulator/.
//
//   __global__ void Scale(float* x, float by, int64_t n) {
//     for (int64_t i = GlobalThread(); i < n; i += NumThreads()) x[i] *= by;
//   }
//   LATHE_LAUNCH(Scale, GridFor(n), kBlock, 0, x, by, n);
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/runtime/device.h"

namespace lathe::cuda {

constexpr int kBlock = 256;     // threads of a block, unless a kernel says otherwise
constexpr int kMaxGrid = 4096;  // most blocks of a flat kernel, whose threads loop

// Returns the grid of a flat kernel over n elements, one to each thread up to kMaxGrid blocks.
inline dim3 GridFor(int64_t n, int block = kBlock) {
  const int64_t blocks = DivideUp(n, block);
  return dim3(static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMaxGrid ? kMaxGrid : blocks));
}

__device__ inline int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t NumThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

#ifdef __CUDACC__

// Returns the block's dynamic shared memory, 16-byte aligned.
template <typename T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char lathe_dynamic_shared[];
  return reinterpret_cast<T*>(lathe_dynamic_shared);
}

template <typename... Parameters, typename... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Arguments&&... arguments) {
  if (shared_bytes > (48 << 10)) {
    AllowSharedMemory(name, reinterpret_cast<const void*>(kernel), shared_bytes);
  }
  kernel<<<grid, block, shared_bytes, Stream()>>>(static_cast<Parameters>(arguments)...);
  CheckCuda(name, cudaGetLastError());
}

#else

template <typename T>
T* DynamicShared() {
  return static_cast<T*>(emulator::DynamicShared());
}

// Calls a kernel in one thread. `arguments` is a tuple of them.
template <typename... Parameters>
void RunThread(const void* kernel, const void* arguments) {
  std::apply(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel)),
             *static_cast<const std::tuple<Parameters...>*>(arguments));
}

template <typename... Parameters, typename... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Arguments&&... arguments) {
  if (shared_bytes > (48 << 10)) {
    AllowSharedMemory(name, reinterpret_cast<const void*>(kernel), shared_bytes);
  }
  static_assert((std::is_trivially_copyable_v<Parameters> && ...));
  static_assert(alignof(std::tuple<Parameters...>) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  const std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  emulator::LaunchKernel(name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
                         RunThread<Parameters...>, &values, sizeof values);
  CheckCuda(name, cudaGetLastError());
}

#endif

}  // namespace lathe::cuda

// Launches `kernel`, a __global__ function; an instance of a template goes in parentheses.
#define LATHE_LAUNCH(kernel, grid, block, shared_bytes, ...) \
  ::lathe::cuda::Launch(#kernel, kernel, grid, block, shared_bytes, __VA_ARGS__)
