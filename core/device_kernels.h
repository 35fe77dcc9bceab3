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

// How two tensors are walked together, outermost dimension first: element strides, 0 where an
// operand stands still. No size is 1. core/broadcast.h makes them.
constexpr int kMaxWalkDims = 8;
struct WalkDims {
  int count;
  int64_t sizes[kMaxWalkDims], a_strides[kMaxWalkDims], b_strides[kMaxWalkDims];
};

// Elementwise functions F of core/elementwise_functions.h; f32, bf16 or f16.
// y_i = f(x_i)
template <typename F>
struct MapKernel {
  void (*run)(const char* op, F f, void* y, const void* x, DType type, int64_t n);
};
// y = f(a, b); y is contiguous along `dims`.
template <typename F>
struct ZipKernel {
  void (*run)(const char* op, F f, void* y, const void* a, const void* b, DType type,
              const WalkDims& dims);
};

// Sums in a fixed order; f32, bf16 or f16.
struct ReduceKernels {
  // y = x summed over the dimensions along which b, y, stands still. a: x. All of y is written.
  void (*sum)(void* y, const void* x, DType type, const WalkDims& dims);
  // Over the last dimension. x, y: (rows, n)
  void (*softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
  void (*log_softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
};

// Losses in float32. loss, dloss: one element, on the device. Sums are double, in a fixed order.
enum class PairLoss { kMse, kBceWithLogits };
struct LossKernels {
  // logits: (rows, classes), labels: (rows). saved: (2 rows + 1), for the gradient. `denominator`
  // 0: the number of labels that are not ignored. A label outside [0, classes) gives a NaN.
  void (*cross_entropy)(float* loss, float* saved, const float* logits, const int64_t* labels,
                        int64_t rows, int64_t classes, int64_t ignore_index, double denominator);
  // dlogits: (rows, classes), 0 for rows that are ignored, NaN for those with labels out of range.
  void (*cross_entropy_grad)(float* dlogits, const float* dloss, const float* saved,
                             const float* logits, const int64_t* labels, int64_t rows,
                             int64_t classes, int64_t ignore_index);
  // a: predictions or logits, b: targets; (n).
  void (*pairs)(PairLoss kind, float* loss, const float* a, const float* b, int64_t n,
                double divisor);
  // out: (n), the gradient of a if `first`, else of b.
  void (*pairs_grad)(PairLoss kind, bool first, float* out, const float* dloss, const float* a,
                     const float* b, int64_t n, double divisor);
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
