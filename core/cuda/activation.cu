// The device's activations and column sums. core/cpu/activation.h declares and describes them.
#include <algorithm>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/activation.h"
#include "lathe/core/cuda/activation_math.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::ActivationKernels;

using Functions = DeviceFunctions;

template <int N, typename T, typename Act>
__global__ void ForwardKernel(T* y, const T* x, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    auto pack = LoadPack<decltype(count)::value>(x + i);
    for (T& v : pack.v) Store(v, Act::Value(Load(v)));
    StorePack(y + i, pack);
  });
}

template <int N, typename T, typename Act>
__global__ void BackwardKernel(T* dx, const T* dy, const T* x, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    constexpr int kCount = decltype(count)::value;
    auto grad = LoadPack<kCount>(dy + i);
    const auto at = LoadPack<kCount>(x + i);
    for (int k = 0; k < kCount; ++k) {
      Store(grad.v[k], Load(grad.v[k]) * Act::Derivative(Load(at.v[k])));
    }
    StorePack(dx + i, grad);
  });
}

// A block of (32, 8) threads sums 32 N columns of a chunk of rows. Thread row r adds rows r, r + 8,
// and so on. Then the eight partial sums are added in the order of r.
constexpr int kLanes = 32, kThreadRows = 8;

// Assigns the column sums of a chunk of rows to the n floats at sums + blockIdx.y * n. Adds them
// there instead if `accumulate`. row(r, column) returns the pack of N elements from `column` on in
// row r.
template <int N, typename Row>
__device__ void SumColumns(float* sums, int64_t rows, int64_t n, int64_t rows_in_chunk,
                           bool accumulate, Row row) {
  __shared__ float partial[kThreadRows][kLanes * N];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLanes * N;
  const int64_t column = first + threadIdx.x * N;
  const int64_t begin = blockIdx.y * rows_in_chunk, end = min(begin + rows_in_chunk, rows);
  float sum[N] = {};
  if (column < n) {
#pragma unroll 2
    for (int64_t r = begin + threadIdx.y; r < end; r += kThreadRows) {
      const auto pack = row(r, column);
      for (int k = 0; k < N; ++k) sum[k] += Load(pack.v[k]);
    }
  }
  for (int k = 0; k < N; ++k) partial[threadIdx.y][threadIdx.x * N + k] = sum[k];
  __syncthreads();
  float* to = sums + blockIdx.y * n;
  for (int i = threadIdx.y * kLanes + threadIdx.x; i < kLanes * N; i += kLanes * kThreadRows) {
    if (first + i >= n) continue;
    float total = accumulate ? to[first + i] : 0;
    for (int r = 0; r < kThreadRows; ++r) total += partial[r][i];
    to[first + i] = total;
  }
}

template <int N, typename T>
__global__ void ColumnSumsKernel(float* sums, const T* x, int64_t rows, int64_t n, int64_t ld,
                                 int64_t rows_in_chunk, bool accumulate) {
  SumColumns<N>(sums, rows, n, rows_in_chunk, accumulate,
                [&](int64_t r, int64_t column) { return LoadPack<N>(x + r * ld + column); });
}

// Computes what BackwardKernel does, and the column sums of dx as it is stored.
template <int N, typename T, typename Act>
__global__ void BackwardAndSumsKernel(T* dx, float* sums, const T* dy, const T* x, int64_t rows,
                                      int64_t n, int64_t rows_in_chunk, bool accumulate) {
  SumColumns<N>(sums, rows, n, rows_in_chunk, accumulate, [&](int64_t r, int64_t column) {
    const int64_t i = r * n + column;
    auto grad = LoadPack<N>(dy + i);
    const auto at = LoadPack<N>(x + i);
    for (int k = 0; k < N; ++k) {
      Store(grad.v[k], Load(grad.v[k]) * Act::Derivative(Load(at.v[k])));
    }
    StorePack(dx + i, grad);
    return grad;
  });
}

// Assigns the column sums of partial: [chunks, n] to sums: [n], or adds them if `accumulate`.
// Thread row r adds chunks r, r + 8, and so on. Then the eight partial sums are added in the order
// of r.
__global__ void AddChunksKernel(float* sums, const float* partial, int64_t chunks, int64_t n,
                                bool accumulate) {
  __shared__ float of_rows[kThreadRows][kLanes];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  float sum = 0;
  if (column < n) {
#pragma unroll 4
    for (int64_t c = threadIdx.y; c < chunks; c += kThreadRows) sum += partial[c * n + column];
  }
  of_rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= n) return;
  float total = accumulate ? sums[column] : 0;
  for (int r = 0; r < kThreadRows; ++r) total += of_rows[r][threadIdx.x];
  sums[column] = total;
}

template <typename T>
void Forward(T* y, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    WithPack<T>({y, x}, [&](auto pack) {
      using Act = decltype(act);
      constexpr int N = decltype(pack)::value;
      LATHE_LAUNCH((ForwardKernel<N, T, Act>), GridFor(DivideUp(n, N)), kBlock, 0, y, x, n);
    });
  });
}

template <typename T>
void Backward(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    WithPack<T>({dx, dy, x}, [&](auto pack) {
      using Act = decltype(act);
      constexpr int N = decltype(pack)::value;
      LATHE_LAUNCH((BackwardKernel<N, T, Act>), GridFor(DivideUp(n, N)), kBlock, 0, dx, dy, x, n);
    });
  });
}

// Splits `rows` rows of n columns into chunks for about `blocks` blocks. A block has at least
// `fewest` rows, a thread N columns. Calls run(grid, block, sums, rows_in_chunk, accumulate), which
// launches a kernel that calls SumColumns.
template <int N, typename Run>
void ByChunks(float* sums, int64_t rows, int64_t n, bool accumulate, int64_t blocks, int64_t fewest,
              Run run) {
  const int64_t across = DivideUp(n, kLanes * N);
  const int64_t wanted = std::max<int64_t>(1, blocks / across);
  const int64_t in_chunk = std::max(fewest, DivideUp(rows, wanted));
  const int64_t chunks = DivideUp(rows, in_chunk);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(chunks));
  const dim3 block(kLanes, kThreadRows);
  if (chunks == 1) return run(grid, block, sums, in_chunk, accumulate);
  float* partial = static_cast<float*>(Workspace(chunks * n * static_cast<int64_t>(sizeof(float))));
  run(grid, block, partial, in_chunk, false);
  LATHE_LAUNCH(AddChunksKernel, dim3(static_cast<unsigned>(DivideUp(n, kLanes))), block, 0, sums,
               partial, chunks, n, accumulate);
}

template <typename T>
void ColumnSums(float* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  if (n == 0 || rows == 0) return;
  const auto by = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    constexpr int64_t kBlocks = 528;  // four for each multiprocessor of an H200
    ByChunks<N>(sums, rows, n, true, kBlocks, 64,
                [&](dim3 grid, dim3 block, float* to, int64_t in_chunk, bool accumulate) {
                  LATHE_LAUNCH((ColumnSumsKernel<N, T>), grid, block, 0, to, x, rows, n, ld,
                               in_chunk, accumulate);
                });
  };
  if (Aligned16({x}) && n % kPack<T> == 0 && ld % kPack<T> == 0) {
    by(std::integral_constant<int, kPack<T>>{});
  } else {
    by(std::integral_constant<int, 1>{});
  }
}

template <typename T>
void BackwardAndSums(T* dx, float* sums, const T* dy, const T* x, int64_t rows, int64_t n,
                     ActivationKind kind, bool overwrite) {
  if (n == 0) return;
  if (rows == 0) {
    if (overwrite) DeviceKernels<TensorKernels>().fill(sums, DType::kF32, 0, n);
    return;
  }
  const auto by = [&](auto act, auto pack) {
    using Act = decltype(act);
    constexpr int N = decltype(pack)::value;
    // The chunks are smaller than those of ColumnSums, since this kernel does more than add. At 16
    // rows a chunk, the partial sums are 4 % of the traffic.
    constexpr int64_t kBlocks = 1056;
    ByChunks<N>(sums, rows, n, !overwrite, kBlocks, 16,
                [&](dim3 grid, dim3 block, float* to, int64_t in_chunk, bool accumulate) {
                  LATHE_LAUNCH((BackwardAndSumsKernel<N, T, Act>), grid, block, 0, dx, to, dy, x,
                               rows, n, in_chunk, accumulate);
                });
  };
  Functions::With(kind, [&](auto act) {
    if (Aligned16({dx, dy, x}) && n % kPack<T> == 0) {
      by(act, std::integral_constant<int, kPack<T>>{});
    } else {
      by(act, std::integral_constant<int, 1>{});
    }
  });
}

template <typename T>
constexpr ActivationKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>, ColumnSums<T>, BackwardAndSums<T>};
}

const ActivationKernels table = {
    .f32 = TableFor<float>(), .f64 = {}, .bf16 = TableFor<BFloat16>(), .f16 = TableFor<Float16>()};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
