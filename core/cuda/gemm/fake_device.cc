// The device of the fake cuBLASLt: its memory, its kernels, and the functions of CUDA's runtime
// that gemm.cc calls.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lathe/core/cpu/activation.h"
#include "lathe/core/cuda/gemm/fake_cublaslt.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe::cuda {
namespace {

cudaDataType_t TypeOf(DType type) {
  return type == DType::kF32 ? CUDA_R_32F : type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

void Convert(void* to, DType to_type, const void* from, DType, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    WriteElement(to, TypeOf(to_type), i, static_cast<const float*>(from)[i]);
  }
}
void Fill(void* to, DType, double value, int64_t n) {
  std::fill_n(static_cast<float*>(to), n, static_cast<float>(value));
}
void AddRow(void* to, DType type, const float* row, int64_t rows, int64_t n, int64_t ld) {
  ++Fake().added_rows;
  for (int64_t i = 0; i < rows * n; ++i) {
    const int64_t at = i / n * ld + i % n;
    WriteElement(to, TypeOf(type), at, ReadElement(to, TypeOf(type), at) + row[i % n]);
  }
}
const TensorKernels tensor_kernels = {Fill, Convert, nullptr, nullptr, nullptr, AddRow};

template <typename T>
void ColumnSums(float* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  ++Fake().column_sums;
  Fake().clock_ms += Fake().column_sums_milliseconds;
  for (int64_t i = 0; i < rows * n; ++i) sums[i % n] += x[i / n * ld + i % n];
}
const cpu::ActivationKernels activation_kernels = {.f32 = {nullptr, nullptr, ColumnSums<float>},
                                                   .f64 = {},
                                                   .bf16 = {nullptr, nullptr, ColumnSums<BFloat16>},
                                                   .f16 = {nullptr, nullptr, ColumnSums<Float16>}};

[[maybe_unused]] const bool registered =
    RegisterDeviceKernels(tensor_kernels) && RegisterDeviceKernels(activation_kernels);

class HostMemory : public SegmentSource {
 public:
  void* Allocate(int64_t bytes) override {
    if (bytes > Fake().free_memory) return nullptr;
    return std::aligned_alloc(512, static_cast<size_t>(bytes));
  }
  void Release(void* segment) override { std::free(segment); }
  Room Memory() override { return {Fake().free_memory, Fake().free_memory}; }
};

}  // namespace

FakeCublasLt& Fake() {
  static FakeCublasLt* fake = new FakeCublasLt;
  return *fake;
}
float ReadElement(const void* from, cudaDataType_t type, int64_t at) {
  if (type == CUDA_R_16BF) return static_cast<const BFloat16*>(from)[at];
  if (type == CUDA_R_16F) return static_cast<const Float16*>(from)[at];
  return static_cast<const float*>(from)[at];
}
void WriteElement(void* to, cudaDataType_t type, int64_t at, float value) {
  if (type == CUDA_R_16BF) {
    static_cast<BFloat16*>(to)[at] = BFloat16(value);
  } else if (type == CUDA_R_16F) {
    static_cast<Float16*>(to)[at] = Float16(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

cudaStream_t Stream() { return nullptr; }
bool IsCapturing() { return Fake().capturing; }
void CheckCuda(const char* call, cudaError_t result) {
  Check(result == cudaSuccess, "cuda", call, " failed");
}
Pool& DevicePool() {
  static Pool* pool = new Pool(*new HostMemory);
  return *pool;
}
void* Workspace(int64_t bytes) {
  static void* given = nullptr;
  static int64_t size = 0;
  if (bytes > size) {
    DevicePool().Free(given);
    given = DevicePool().Allocate(bytes);
    size = bytes;
  }
  return given;
}

}  // namespace lathe::cuda

// --- the functions of the CUDA runtime that gemm.cc calls ---

using lathe::cuda::Fake;

struct CUevent_st {
  float at = 0;
};

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Fake GPU");
  properties->multiProcessorCount = 7;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ++Fake().live;
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->at = Fake().clock_ms;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  if (Fake().capturing) Fake().mistakes.push_back("waited while the stream records");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = to->at - from->at;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  --Fake().live;
  delete event;
  return cudaSuccess;
}
