// A residual sum, scaled and shifted. core/cpu/scale_shift/scale_shift.h describes the kernels.
#include "lathe/core/cpu/scale_shift/scale_shift.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/norm_rows.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::ScaleShiftKernels;

template <typename T>
__global__ void ForwardKernel(T* y, T* z, const T* x, const T* residual, const float* weight,
                              const float* bias, int64_t rows, int64_t n) {
  for (int64_t i = GlobalThread(); i < rows * n; i += NumThreads()) {
    float value = Load(x[i]);
    if (residual != nullptr) {
      value += Load(residual[i]);
      Store(z[i], value);
    }
    Store(y[i], value * weight[i % n] + bias[i % n]);
  }
}

// Block c takes the c-th of gridDim.x chunks of the rows. It writes its sums of weight and bias
// gradients to row c of `partial`.
template <typename T>
__global__ void BackwardKernel(T* dz, float* partial, const T* dy, const T* z, const float* weight,
                               int64_t rows, int64_t n) {
  const int64_t begin = rows * blockIdx.x / gridDim.x, end = rows * (blockIdx.x + 1) / gridDim.x;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float w = weight[c];
    float dw = 0, db = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float d = Load(dy[r * n + c]);
      dw += d * Load(z[r * n + c]);
      db += d;
      Store(dz[r * n + c], d * w);
    }
    partial[blockIdx.x * 2 * n + c] = dw;
    partial[blockIdx.x * 2 * n + n + c] = db;
  }
}

template <typename T>
void Forward(T* y, T* z, const T* x, const T* residual, const float* weight, const float* bias,
             int64_t rows, int64_t n) {
  if (rows * n == 0) return;
  LATHE_LAUNCH(ForwardKernel<T>, GridFor(rows * n), kBlock, 0, y, z, x, residual, weight, bias,
               rows, n);
}

template <typename T>
void Backward(T* dz, float* dweight, float* dbias, float* partial, const T* dy, const T* z,
              const float* weight, int64_t rows, int64_t n) {
  if (rows * n == 0) return;
  const int64_t chunks = NormChunks(rows, n);
  LATHE_LAUNCH(BackwardKernel<T>, dim3(static_cast<unsigned>(chunks)), kBlock, 0, dz, partial, dy,
               z, weight, rows, n);
  AddNormPartials(dweight, dbias, partial, chunks, n);
}

template <typename T>
constexpr ScaleShiftKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>};
}

const ScaleShiftKernels table = {.f32 = TableFor<float>(),
                                 .f64 = {},
                                 .bf16 = TableFor<BFloat16>(),
                                 .f16 = TableFor<Float16>(),
                                 .chunks = NormChunks};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
