// Stands in for cuBLASLt: the host computes the products, on device memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "lathe/core/cuda/gemm/gemm_problem.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/gemm.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {
namespace {

// Returns a matrix [rows, columns] of T as float32.
template <typename T>
std::vector<float> Widen(const void* from, int64_t rows, int64_t columns, int64_t ld) {
  std::vector<float> wide(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = static_cast<const T*>(from) + r * ld;
    std::transform(row, row + columns, wide.begin() + r * columns,
                   [](T x) { return static_cast<float>(x); });
  }
  return wide;
}

template <typename T, typename C>
void Product(const GemmArgs& g) {
  const int64_t a_rows = g.transpose_a ? g.K : g.M, a_columns = g.transpose_a ? g.M : g.K;
  const int64_t b_rows = g.transpose_b ? g.N : g.K, b_columns = g.transpose_b ? g.K : g.N;
  const std::vector<float> a = Widen<T>(g.a, a_rows, a_columns, g.lda);
  const std::vector<float> b = Widen<T>(g.b, b_rows, b_columns, g.ldb);
  std::vector<float> c = g.beta == 0 ? std::vector<float>(static_cast<size_t>(g.M * g.N))
                                     : Widen<C>(g.c, g.M, g.N, g.ldc);
  Gemm({.a = g.transpose_a, .b = g.transpose_b}, g.M, g.N, g.K, a.data(), a_columns, b.data(),
       b_columns, g.beta, c.data(), g.N, g.bias);
  for (int64_t r = 0; r < g.M; ++r) {
    std::transform(c.begin() + r * g.N, c.begin() + (r + 1) * g.N, static_cast<C*>(g.c) + r * g.ldc,
                   [](float x) { return C(x); });
  }
}

template <typename T>
void SumRowsOfA(const GemmArgs& g) {
  for (int64_t m = 0; m < g.M; ++m) {
    float sum = g.beta == 0 ? 0 : g.a_sums[m];
    for (int64_t k = 0; k < g.K; ++k) sum += static_cast<const T*>(g.a)[k * g.lda + m];
    g.a_sums[m] = sum;
  }
}

template <typename T>
void ProductOf(const GemmArgs& g) {
  if (g.a_sums != nullptr) SumRowsOfA<T>(g);
  if (g.M == 0 || g.N == 0) return;
  g.c_type == DType::kF32 ? Product<T, float>(g) : Product<T, T>(g);
}

void DoProduct(const GemmArgs& g) {
  const DeviceAccess access;
  if (g.batch > 1) {
    for (int64_t i = 0; i < g.batch; ++i) DoProduct(cuda::ProductOfBatch(g, i));
    return;
  }
  if (g.type == DType::kF32) return ProductOf<float>(g);
  return g.type == DType::kBF16 ? ProductOf<BFloat16>(g) : ProductOf<Float16>(g);
}

void AnyProduct(const GemmArgs& g) {
  DoOrRecord([g] { DoProduct(g); });
}

const GemmKernels table = {AnyProduct};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::emulator
