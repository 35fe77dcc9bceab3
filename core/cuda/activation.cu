// Activations and column sums: see core/cpu/activation.h.
#include "lathe/core/cpu/activation.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::ActivationKernels;
using cpu::ActivationKind;

// Value and derivative, as in core/cpu/activation.cc.
struct Gelu {
  static __device__ float Value(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
  static __device__ float Derivative(float x) {
    return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
  }
};
struct GeluNew {
  static __device__ float Value(float x) {
    return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  }
  static __device__ float Derivative(float x) {
    const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
  }
};
struct Relu {
  static __device__ float Value(float x) { return x < 0 ? 0 : x; }  // NaN stays
  static __device__ float Derivative(float x) { return x > 0 ? 1 : 0; }
};
struct TanhActivation {
  static __device__ float Value(float x) { return tanhf(x); }
  static __device__ float Derivative(float x) {
    const float t = tanhf(x);
    return 1 - t * t;
  }
};
struct Silu {
  static __device__ float Value(float x) { return x / (1 + expf(-x)); }
  static __device__ float Derivative(float x) {
    const float s = 1 / (1 + expf(-x));
    return s * (1 + x * (1 - s));
  }
};

template <typename Body>
void With(ActivationKind kind, Body body) {
  switch (kind) {
    case ActivationKind::kNone:
      return;
    case ActivationKind::kGelu:
      return body(Gelu{});
    case ActivationKind::kGeluNew:
      return body(GeluNew{});
    case ActivationKind::kRelu:
      return body(Relu{});
    case ActivationKind::kTanh:
      return body(TanhActivation{});
    case ActivationKind::kSilu:
      return body(Silu{});
  }
}

template <typename T, typename Act>
__global__ void ForwardKernel(T* y, const T* x, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) Store(y[i], Act::Value(Load(x[i])));
}

template <typename T, typename Act>
__global__ void BackwardKernel(T* dx, const T* dy, const T* x, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    Store(dx[i], Load(dy[i]) * Act::Derivative(Load(x[i])));
  }
}

// A block of (32, 8) threads sums 32 columns: thread row r adds rows r, r + 8, ..., then the eight
// sums are added in their order.
constexpr int kColumns = 32, kRows = 8;

template <typename T>
__global__ void ColumnSumsKernel(float* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  __shared__ float partial[kRows][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < n) {
    for (int64_t r = threadIdx.y; r < rows; r += kRows) sum += Load(x[r * ld + column]);
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= n) return;
  for (int r = 1; r < kRows; ++r) sum += partial[r][threadIdx.x];
  sums[column] += sum;
}

template <typename T>
void Forward(T* y, const T* x, int64_t n, ActivationKind kind) {
  With(kind, [&](auto act) {
    using Act = decltype(act);
    LATHE_LAUNCH((ForwardKernel<T, Act>), GridFor(n), kBlock, 0, y, x, n);
  });
}

template <typename T>
void Backward(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind) {
  With(kind, [&](auto act) {
    using Act = decltype(act);
    LATHE_LAUNCH((BackwardKernel<T, Act>), GridFor(n), kBlock, 0, dx, dy, x, n);
  });
}

template <typename T>
void ColumnSums(float* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  if (n == 0) return;
  const dim3 grid(static_cast<unsigned>((n + kColumns - 1) / kColumns));
  LATHE_LAUNCH(ColumnSumsKernel<T>, grid, dim3(kColumns, kRows), 0, sums, x, rows, n, ld);
}

template <typename T>
constexpr ActivationKernels::Of<T> Of() {
  return {Forward<T>, Backward<T>, ColumnSums<T>};
}

const ActivationKernels table = {
    .f32 = Of<float>(), .f64 = {}, .bf16 = Of<BFloat16>(), .f16 = Of<Float16>()};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
