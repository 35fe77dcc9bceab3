// Repeated heads of attention. HeadsKernels in core/kernels/heads_kernels.h describes the kernels.
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/heads_kernels.h"

namespace lathe::cuda {
namespace {

// Each thread takes one element of x at a time, and all of its repetitions.
template <typename T>
__global__ void RepeatKernel(T* y, const T* x, RepeatHeadsArgs args) {
  const int64_t d = args.head_dim, n = args.rows * args.heads * d;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    T* const to = y + i / d * args.repeats * d + i % d;
    for (int64_t r = 0; r < args.repeats; ++r) to[r * d] = x[i];
  }
}

template <typename T>
__global__ void RepeatGradKernel(T* dx, const T* dy, RepeatHeadsArgs args) {
  const int64_t d = args.head_dim, n = args.rows * args.heads * d;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const T* const from = dy + i / d * args.repeats * d + i % d;
    float sum = 0;
    for (int64_t r = 0; r < args.repeats; ++r) sum += Load(from[r * d]);
    Store(dx[i], sum);
  }
}

void Repeat(void* y, const void* x, DType type, const RepeatHeadsArgs& args) {
  const int64_t n = args.rows * args.heads * args.head_dim;
  if (n == 0) return;
  DispatchNumbers("repeat_heads", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(RepeatKernel<T>, GridFor(n), kBlock, 0, static_cast<T*>(y),
                 static_cast<const T*>(x), args);
  });
}

void RepeatGrad(void* dx, const void* dy, DType type, const RepeatHeadsArgs& args) {
  const int64_t n = args.rows * args.heads * args.head_dim;
  if (n == 0) return;
  DispatchNumbers("repeat_heads", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(RepeatGradKernel<T>, GridFor(n), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), args);
  });
}

const HeadsKernels table = {Repeat, RepeatGrad};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
