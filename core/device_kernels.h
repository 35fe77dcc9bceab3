// Kernel tables of the device that isn't the host's processor: the same structs of function
// pointers that core/cpu/ fills, filled by core/cuda/ with functions that take the device's
// pointers and queue their work.
#pragma once

#include <cstdint>

#include "lathe/core/dtype.h"

namespace lathe {

template <typename Table>
struct DeviceTable {
  inline static const Table* table = nullptr;
};

// Called before main by each kernel source. Returns true.
template <typename Table>
bool RegisterDeviceKernels(const Table& table) {
  DeviceTable<Table>::table = &table;
  return true;
}

[[noreturn]] inline void ThrowNoDeviceKernels() {
  throw InvalidArgument("[device] this program was built without CUDA's kernels",
                        "build it where CUDA is installed, or use the CPU");
}

template <typename Table>
const Table& DeviceKernels() {
  if (DeviceTable<Table>::table == nullptr) ThrowNoDeviceKernels();
  return *DeviceTable<Table>::table;
}

// What tensors themselves need on a device. All pointers are the device's; n counts elements.
struct TensorKernels {
  void (*fill)(void* to, DType type, double value, int64_t n);
  // Rounds to nearest even, as the host does.
  void (*convert)(void* to, DType to_type, const void* from, DType from_type, int64_t n);
  // to += x; f32, bf16 or f16
  void (*add)(void* to, const void* x, DType type, int64_t n);
  // to *= factor; f32, bf16 or f16
  void (*scale)(void* to, DType type, double factor, int64_t n);
};

// Matrix products: see core/gemm.h. C is of c_type, f32 or that of A and B.
struct GemmArgs {
  bool transpose_a, transpose_b;
  int64_t M, N, K;
  const void* a;
  int64_t lda;
  const void* b;
  int64_t ldb;
  float beta;
  void* c;
  int64_t ldc;
  const float* bias;
  DType type, c_type;
};
struct GemmKernels {
  void (*product)(const GemmArgs& args);
};

}  // namespace lathe
