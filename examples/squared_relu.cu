// The kernels of SquaredRelu. nvcc compiles them for GPUs, and the host's compiler for the
// emulator.
#include "lathe/core/cuda/launch.h"
#include "lathe/core/device_kernels.h"
#include "lathe/examples/squared_relu.h"

namespace {

__global__ void ForwardKernel(float* y, const float* x, int64_t n) {
  for (int64_t i = lathe::cuda::GlobalThread(); i < n; i += lathe::cuda::NumThreads()) {
    const float positive = x[i] < 0 ? 0 : x[i];
    y[i] = positive * positive;
  }
}

__global__ void BackwardKernel(float* dx, const float* dy, const float* x, int64_t n) {
  for (int64_t i = lathe::cuda::GlobalThread(); i < n; i += lathe::cuda::NumThreads())
    dx[i] = 2 * (x[i] < 0 ? 0 : x[i]) * dy[i];
}

void Forward(float* y, const float* x, int64_t n) {
  if (n == 0) return;
  LATHE_LAUNCH(ForwardKernel, lathe::cuda::GridFor(n), lathe::cuda::kBlock, 0, y, x, n);
}

void Backward(float* dx, const float* dy, const float* x, int64_t n) {
  if (n == 0) return;
  LATHE_LAUNCH(BackwardKernel, lathe::cuda::GridFor(n), lathe::cuda::kBlock, 0, dx, dy, x, n);
}

// Lets SquaredRelu find the kernels.
const SquaredReluKernels kernels = {Forward, Backward};
[[maybe_unused]] const bool registered = lathe::RegisterDeviceKernels(kernels);

}  // namespace
