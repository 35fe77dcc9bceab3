// Stands in for CUDA's header of this name: a .cu file compiles with the host's compiler and runs
// without a GPU. It has the language's extensions, built-in variables and functions, and the part
// of the runtime's interface that Lathe calls. Everything happens at once, in the order of the
// calls.
//
// A kernel's blocks run one after the other, the threads of a block as fibers. The environment's
// LATHE_EMULATOR_ORDER decides in which order blocks and threads get their turn and when
// asynchronous copies arrive. Results must not depend on it. Its values:
//   "forward" (default): all threads take turns, each until it has to wait. A copy arrives when its
//     thread waits for it.
//   "reverse": the last come first. A warp runs on until it has to wait for another one. A copy
//     arrives at once.
//   a number, the seed of a shuffle: each block and each copy goes one way or the other, at random.
//
// Memory that is read before it is written holds NaN: tensors, scratch memory, and a block's shared
// memory. Under AddressSanitizer an access outside of a tensor is an error.
//
// Only kernels and copies can touch device memory: the host faults, as it would with a GPU. There
// are 16 GiB of it, or as many MiB as the environment's LATHE_EMULATOR_MEMORY_MIB says. The machine
// has one device, or as many as LATHE_EMULATOR_DEVICES says. Each process sees memory of its own in
// them, so only one process should use each. A block may ask for 227 KiB of dynamic shared memory,
// or as many KiB as LATHE_EMULATOR_SHARED_KIB says. A launch that asks for more is an error.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#define LATHE_CUDA_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// One block runs at a time, so its threads share a static variable. The tag in the variable's
// name lets the emulator find it and fill it with NaN before each block.
#define __shared__ static __attribute__((abi_tag("lathe_shared")))
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

namespace lathe::emulator {

// Returns true if what may happen now or later happens now, as LATHE_EMULATOR_ORDER decides for the
// running kernel.
bool ComesEarly();

struct AsyncCopy {
  void* to;
  const void* from;
  size_t bytes;
  unsigned group;
};
struct Thread {
  uint3 thread_index, block_index;
  dim3 block_size, grid_size;
  std::vector<AsyncCopy> copies = {};  // copies that have not arrived
  unsigned copy_groups = 0;            // groups committed so far
  // What it brought to its last two products of tensor cores, and how many there were.
  struct Operands {
    float a[4][2], b[2][2];  // the elements of each word
  } operands[2] = {};
  unsigned products = 0;
};
// The thread whose turn it is.
extern Thread* current;

// Calls the function `kernel` with its arguments in one thread. Neither has a type here, so that
// each kernel that is launched costs the compiler little.
using RunThread = void (*)(const void* kernel, const void* arguments);
// Runs a kernel in every thread of every block. `dynamic_shared` is the number of bytes for
// DynamicShared; they are fresh and filled with NaN for each block.
void RunKernel(const char* name, const void* kernel, dim3 grid, dim3 block, size_t dynamic_shared,
               RunThread run, const void* arguments);
// Does so, or records it if a graph is being captured. Keeps a copy of the arguments' bytes.
void LaunchKernel(const char* name, const void* kernel, dim3 grid, dim3 block,
                  size_t dynamic_shared, RunThread run, const void* arguments, size_t bytes);
void* DynamicShared();

// The bytes that a pool must leave free behind each piece of memory that it hands out.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kGuardBytes = 512;
#else
constexpr int64_t kGuardBytes = 0;
#endif
// A pool calls these when it hands out memory and when it gets the memory back. Handed-out memory
// is filled with NaN. Under AddressSanitizer nothing may touch the kGuardBytes behind it, or any of
// it once it is free. With `recorded`, this happens each time the work being recorded is done, not
// now.
void MemoryIsUsed(void* memory, size_t bytes, bool recorded = false);
void MemoryIsFree(void* memory, size_t bytes, bool recorded = false);

// Fills the static __shared__ variables that a kernel can use with NaN.
void SpoilStaticShared(const void* kernel);

// Does the work, or records it if a graph is being captured.
void DoOrRecord(std::function<void()> work);

void SyncThreads();
// Waits until all threads of the warp that have not returned have called it. Returns each lane's
// value, and sets `present` for the lanes that called; absent lanes have 0. The values stay until
// the next call but one.
const uint64_t* ExchangeInWarp(unsigned mask, uint64_t mine, bool* present);
unsigned Lane();

// Tensor cores, for core/cuda/mma.h. `widen` turns the bits of an element into a float.
void MultiplyAccumulate(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        float (*widen)(uint16_t));
void LoadMatrices(uint32_t (&to)[4], const void* row, bool transposed);

// For core/cuda/async_copy.h. CopyAsync writes 16 bytes; those beyond `bytes` become 0.
void CopyAsync(void* to, const void* from, size_t bytes);
void CommitCopies();
void WaitForCopies(unsigned groups);

template <typename T>
uint64_t ToBits(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <typename T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace lathe::emulator

#define threadIdx (::lathe::emulator::current->thread_index)
#define blockIdx (::lathe::emulator::current->block_index)
#define blockDim (::lathe::emulator::current->block_size)
#define gridDim (::lathe::emulator::current->grid_size)
constexpr int warpSize = 32;

inline void __syncthreads() { lathe::emulator::SyncThreads(); }
inline void __syncwarp(unsigned mask = ~0u) {
  bool present[32];
  lathe::emulator::ExchangeInWarp(mask, 0, present);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// A lane whose source is outside of its group of `width`, or absent, keeps its own value.
template <typename T>
T lathe_shuffle(unsigned mask, T value, int source, int width) {
  bool present[32];
  const uint64_t* all =
      lathe::emulator::ExchangeInWarp(mask, lathe::emulator::ToBits(value), present);
  const int lane = static_cast<int>(lathe::emulator::Lane()), first = lane / width * width;
  if (source < first || source >= first + width || !present[source]) return value;
  return lathe::emulator::FromBits<T>(all[source]);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = static_cast<int>(lathe::emulator::Lane()) / width * width;
  return lathe_shuffle(mask, value, first + (source & (width - 1)), width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return lathe_shuffle(mask, value, static_cast<int>(lathe::emulator::Lane()) ^ bits, width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return lathe_shuffle(mask, value, static_cast<int>(lathe::emulator::Lane() + by), width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return lathe_shuffle(mask, value,
                       static_cast<int>(lathe::emulator::Lane()) - static_cast<int>(by), width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  bool present[32];
  const uint64_t* all = lathe::emulator::ExchangeInWarp(mask, predicate != 0, present);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) votes |= unsigned{all[lane] != 0} << lane;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <typename T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, static_cast<T>(*to + value));
}
template <typename T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, std::max(*to, value));
}
template <typename T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, static_cast<T>(*to | value));
}
template <typename T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, value);
}
template <typename T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T before = *to;
  if (before == expected) *to = value;
  return before;
}

template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return ffs(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frsqrt_rn(float x) { return 1 / std::sqrt(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
using std::max;
using std::min;

// --- the runtime's interface ---

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraph_st*;
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2,
                   cudaHostAllocDefault = 0;

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetDevice(int* index);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index);
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int index);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventDestroy(cudaEvent_t event);

namespace lathe::emulator {

// Runs `work` on the stream's own thread, after all that was enqueued there before. The stream's
// events, copies and waits come after it; kernels and other streams don't wait.
void Enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace lathe::emulator
