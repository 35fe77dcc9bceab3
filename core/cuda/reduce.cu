// Sums over dimensions, softmax and log-softmax. ReduceKernels in core/kernels/reduce_kernels.h
// describes them.
#include <algorithm>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/rows.h"
#include "lathe/core/cuda/walk_parts.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/reduce_kernels.h"

namespace lathe::cuda {
namespace {

template <typename T>
__device__ double LoadDouble(const T& x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return Load(x);
  }
}
template <typename T>
__device__ void StoreDouble(T& to, double x) {
  if constexpr (std::is_same_v<T, double>) {
    to = x;
  } else {
    Store(to, static_cast<float>(x));
  }
}

// Both kernels compute y: [parts, m]. Element y[p, o] belongs to element o of `kept`. It is the sum
// over elements p * length to (p + 1) * length - 1 of `summed`. m and n are the numbers of elements
// of `kept` and `summed`.

// For sums along the innermost dimension.
template <typename Group, typename To, typename From>
__global__ void SumRows(To* y, const From* x, WalkPart kept, WalkPart summed, int64_t m, int64_t n,
                        int64_t parts, int64_t length) {
  for (int64_t r = Group::First(); r < m * parts; r += Group::Count()) {
    const From* row = x + kept.Offset(r % m);
    const int64_t first = r / m * length, last = min(first + length, n);
    double sum = 0;
    for (int64_t i = first + Group::Rank(); i < last; i += Group::kThreads) {
      sum += LoadDouble(row[summed.Offset(i)]);
    }
    sum = Group::Sum(sum);
    if (Group::Rank() == 0) StoreDouble(y[r], sum);
  }
}

// For an innermost dimension that is kept. A block of (32, 8) threads takes 32 columns of part
// blockIdx.y. Thread row t adds elements t, t + 8, and so on. Then the eight sums are added in the
// order of t.
constexpr int kColumns = 32, kThreadRows = 8;

template <typename To, typename From>
__global__ void SumColumns(To* y, const From* x, WalkPart kept, WalkPart summed, int64_t m,
                           int64_t n, int64_t length) {
  __shared__ double partial[kThreadRows][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const int64_t first = blockIdx.y * length, last = min(first + length, n);
  double sum = 0;
  if (column < m) {
    const From* at = x + kept.Offset(column);
    for (int64_t i = first + threadIdx.y; i < last; i += kThreadRows) {
      sum += LoadDouble(at[summed.Offset(i)]);
    }
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= m) return;
  for (int t = 1; t < kThreadRows; ++t) sum += partial[t][threadIdx.x];
  StoreDouble(y[blockIdx.y * m + column], sum);
}

template <typename To, typename From>
void LaunchSumRows(To* y, const From* x, const WalkPart& kept, const WalkPart& summed,
                   int64_t parts, int64_t length) {
  const int64_t m = kept.NumElements(), n = summed.NumElements();
  WithRowGroup(length, [&](auto group) {
    using Group = decltype(group);
    LATHE_LAUNCH((SumRows<Group, To, From>), GridForRows<Group>(m * parts), kBlock, 0, y, x, kept,
                 summed, m, n, parts, length);
  });
}

template <typename To, typename From>
void LaunchSumColumns(To* y, const From* x, const WalkPart& kept, const WalkPart& summed,
                      int64_t parts, int64_t length) {
  const int64_t m = kept.NumElements(), n = summed.NumElements();
  const dim3 grid(static_cast<unsigned>(DivideUp(m, kColumns)), static_cast<unsigned>(parts));
  LATHE_LAUNCH((SumColumns<To, From>), grid, dim3(kColumns, kThreadRows), 0, y, x, kept, summed, m,
               n, length);
}

// If there are few sums over many elements, each is computed in parts. Their bounds depend on the
// sizes alone, so the order of additions is fixed.
template <typename T>
void SumTo(T* y, const T* x, const WalkDims& dims) {
  constexpr int64_t kBlocks = 1024, kRowPart = 4096, kColumnPart = 64;
  const WalkParts walk_parts(dims);
  const WalkPart &kept = walk_parts.kept, &summed = walk_parts.reduced;
  const bool rows = dims.count == 0 || dims.b_strides[dims.count - 1] == 0;
  const int64_t m = kept.NumElements(), n = summed.NumElements();
  if (m == 0) return;
  const int64_t blocks = rows ? m : DivideUp(m, kColumns);
  const int64_t part = rows ? kRowPart : kColumnPart;
  const int64_t most_parts = std::max<int64_t>(1, kBlocks / blocks);
  int64_t parts = std::clamp<int64_t>(n / part, 1, most_parts);
  const int64_t length = DivideUp(n, parts);
  const auto sum = [&](auto* to) {
    rows ? LaunchSumRows(to, x, kept, summed, parts, length)
         : LaunchSumColumns(to, x, kept, summed, parts, length);
  };
  if (parts == 1) return sum(y);
  double* partial = static_cast<double*>(Workspace(parts * m * SizeOf(DType::kF64)));
  sum(partial);
  WalkPart columns, of_parts;
  columns.Add(m, 1);
  of_parts.Add(parts, m);
  LaunchSumColumns<T, double>(y, partial, columns, of_parts, 1, parts);
}

void Sum(void* y, const void* x, DType type, const WalkDims& dims) {
  DispatchNumbers("sum", type, [&](auto tag) {
    using T = decltype(tag);
    SumTo(static_cast<T*>(y), static_cast<const T*>(x), dims);
  });
}

// If kLog, y_rj = x_rj - m_r - ln s_r, else e^(x_rj - m_r) / s_r. m_r is the largest x_rk of the
// row, and s_r = sum_k e^(x_rk - m_r).
template <bool kLog, typename Group, typename T>
__global__ void SoftmaxRows(T* y, const T* x, int64_t rows, int64_t n) {
  for (int64_t r = Group::First(); r < rows; r += Group::Count()) {
    const T* in = x + r * n;
    T* out = y + r * n;
    float max = -INFINITY;
    for (int64_t j = Group::Rank(); j < n; j += Group::kThreads) {
      const float value = Load(in[j]);
      max = value <= max ? max : value;  // keeps a NaN
    }
    max = Group::Max(max);
    float sum = 0;
    for (int64_t j = Group::Rank(); j < n; j += Group::kThreads) sum += expf(Load(in[j]) - max);
    sum = Group::Sum(sum);
    const float scale = 1 / sum, log_sum = logf(sum);
    for (int64_t j = Group::Rank(); j < n; j += Group::kThreads) {
      const float shifted = Load(in[j]) - max;
      Store(out[j], kLog ? shifted - log_sum : expf(shifted) * scale);
    }
  }
}

template <bool kLog>
void Softmax(void* y, const void* x, DType type, int64_t rows, int64_t n) {
  if (rows == 0 || n == 0) return;
  DispatchNumbers(kLog ? "log_softmax" : "softmax", type, [&](auto tag) {
    WithRowGroup(n, [&](auto group) {
      using T = decltype(tag);
      using Group = decltype(group);
      LATHE_LAUNCH((SoftmaxRows<kLog, Group, T>), GridForRows<Group>(rows), kBlock, 0,
                   static_cast<T*>(y), static_cast<const T*>(x), rows, n);
    });
  });
}

const ReduceKernels table = {Sum, Softmax<false>, Softmax<true>};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
