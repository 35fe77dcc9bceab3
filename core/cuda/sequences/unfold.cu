// The neighbours of each token side by side. UnfoldKernels in core/kernels/unfold_kernels.h
// describes the kernels.
#include <algorithm>

#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/sequences/sequence_of.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/unfold_kernels.h"

namespace lathe::cuda {
namespace {

// A block takes a row of x at a time, so that its threads search for the sequence together.
template <typename T>
__global__ void UnfoldKernel(T* y, const T* x, UnfoldArgs args) {
  const int64_t width = args.taps * args.columns;
  const bool by_columns = args.order == UnfoldOrder::kColumns;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const RowRange sequence = SequenceOf(args.cu_seqlens, args.batch, row);
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      int64_t t = by_columns ? i % args.taps : i / args.columns;
      const int64_t c = by_columns ? i / args.taps : i % args.columns;
      if (args.order == UnfoldOrder::kTapsReversed) t = args.taps - 1 - t;
      const int64_t from = row + t - args.before();
      y[row * width + i] = sequence.Has(from) ? x[from * args.columns + c] : T{};
    }
  }
}

template <typename T>
__global__ void UnfoldGradKernel(T* dx, const T* dy, UnfoldArgs args) {
  const int64_t width = args.taps * args.columns;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const RowRange sequence = SequenceOf(args.cu_seqlens, args.batch, row);
    for (int64_t c = threadIdx.x; c < args.columns; c += blockDim.x) {
      float sum = 0;
      for (int64_t t = 0; t < args.taps; ++t) {
        const int64_t from = row - t + args.before();  // the row whose tap t holds this row
        if (sequence.Has(from)) sum += Load(dy[from * width + args.Place(t, c)]);
      }
      Store(dx[row * args.columns + c], sum);
    }
  }
}

dim3 GridOf(const UnfoldArgs& args) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(args.rows, kMaxGrid)));
}

void Forward(void* y, const void* x, DType type, const UnfoldArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  DispatchNumbers("unfold", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(UnfoldKernel<T>, GridOf(args), kBlock, 0, static_cast<T*>(y),
                 static_cast<const T*>(x), args);
  });
}

void Backward(void* dx, const void* dy, DType type, const UnfoldArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  DispatchNumbers("unfold", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(UnfoldGradKernel<T>, GridOf(args), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), args);
  });
}

const UnfoldKernels table = {Forward, Backward};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
