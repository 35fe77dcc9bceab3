// The maxima of sequences. SegmentMaxKernels in core/kernels/segment_kernels.h describes the
// kernels.
#include <algorithm>

#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/sequences/sequence_of.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/segment_kernels.h"

namespace lathe::cuda {
namespace {

// A thread takes one column of one sequence at a time.
template <typename T>
__global__ void MaxKernel(T* y, int32_t* places, const T* x, SegmentArgs args) {
  const int64_t n = args.columns;
  for (int64_t i = GlobalThread(); i < args.batch * n; i += NumThreads()) {
    const int64_t b = i / n, c = i % n;
    int32_t place = -1;
    float largest = 0;
    for (int32_t r = args.cu_seqlens[b]; r < args.cu_seqlens[b + 1]; ++r) {
      const float value = Load(x[r * n + c]);
      if (place >= 0 && (value <= largest || largest != largest)) continue;
      place = r;
      largest = value;
    }
    Store(y[i], largest);
    places[i] = place;
  }
}

// A block takes a row of dx at a time, so that its threads search for the sequence together.
template <typename T>
__global__ void MaxGradKernel(T* dx, const T* dy, const int32_t* places, SegmentArgs args) {
  const int64_t n = args.columns;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const RowRange rows = SequenceOf(args.cu_seqlens, args.batch, row);
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      const int64_t from = rows.sequence * n + c;
      dx[row * n + c] = rows.sequence >= 0 && places[from] == row ? dy[from] : T{};
    }
  }
}

void Max(void* y, int32_t* places, const void* x, DType type, const SegmentArgs& args) {
  if (args.batch == 0 || args.columns == 0) return;
  DispatchNumbers("segment_max", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MaxKernel<T>, GridFor(args.batch * args.columns), kBlock, 0, static_cast<T*>(y),
                 places, static_cast<const T*>(x), args);
  });
}

void MaxGrad(void* dx, const void* dy, const int32_t* places, DType type, const SegmentArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  DispatchNumbers("segment_max", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MaxGradKernel<T>,
                 dim3(static_cast<unsigned>(std::min<int64_t>(args.rows, kMaxGrid))), kBlock, 0,
                 static_cast<T*>(dx), static_cast<const T*>(dy), places, args);
  });
}

const SegmentMaxKernels table = {Max, MaxGrad};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
