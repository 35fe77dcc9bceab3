// Variances over dimensions. VarianceKernels in core/kernels/math/variance_kernels.h describes the
// kernels.
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/rows.h"
#include "lathe/core/cuda/walk_parts.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/math/variance_kernels.h"

namespace lathe::cuda {
namespace {

template <typename Group, typename T>
__global__ void VarianceRows(T* y, float* means, const T* x, WalkPart kept, WalkPart reduced,
                             int64_t m, int64_t n, double divisor) {
  for (int64_t r = Group::First(); r < m; r += Group::Count()) {
    const T* const row = x + kept.Offset(r);
    double sum = 0;
    for (int64_t i = Group::Rank(); i < n; i += Group::kThreads)
      sum += Load(row[reduced.Offset(i)]);
    const double mean = Group::Sum(sum) / static_cast<double>(n);
    double squares = 0;
    for (int64_t i = Group::Rank(); i < n; i += Group::kThreads) {
      const double distance = Load(row[reduced.Offset(i)]) - mean;
      squares += distance * distance;
    }
    squares = Group::Sum(squares);
    if (Group::Rank() != 0) continue;
    means[r] = static_cast<float>(mean);
    Store(y[r], static_cast<float>(squares / divisor));
  }
}

template <typename T>
__global__ void VarianceGradKernel(T* dx, const T* dy, const T* x, const float* means,
                                   WalkDims dims, int64_t n, float factor) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    int64_t rest = i, at = 0;
    for (int d = dims.count - 1; d >= 0; --d) {
      at += rest % dims.sizes[d] * dims.b_strides[d];
      rest /= dims.sizes[d];
    }
    Store(dx[i], Load(dy[at]) * factor * (Load(x[i]) - means[at]));
  }
}

void Forward(void* y, float* means, const void* x, DType type, double divisor,
             const WalkDims& dims) {
  const WalkParts parts(dims);
  const WalkPart &kept = parts.kept, &reduced = parts.reduced;
  const int64_t m = kept.NumElements(), n = reduced.NumElements();
  if (m == 0) return;
  DispatchNumbers("variance", type, [&](auto tag) {
    WithRowGroup(n, [&](auto group) {
      using T = decltype(tag);
      using Group = decltype(group);
      LATHE_LAUNCH((VarianceRows<Group, T>), GridForRows<Group>(m), kBlock, 0, static_cast<T*>(y),
                   means, static_cast<const T*>(x), kept, reduced, m, n, divisor);
    });
  });
}

void Backward(void* dx, const void* dy, const void* x, const float* means, DType type,
              double divisor, const WalkDims& dims) {
  int64_t n = 1;
  for (int d = 0; d < dims.count; ++d) n *= dims.sizes[d];
  if (n == 0) return;
  DispatchNumbers("variance", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(VarianceGradKernel<T>, GridFor(n), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), static_cast<const T*>(x), means, dims, n,
                 static_cast<float>(2 / divisor));
  });
}

const VarianceKernels table = {Forward, Backward};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
