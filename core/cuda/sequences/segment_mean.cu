// The means of sequences. SegmentKernels in core/kernels/segment_kernels.h describes the kernels.
#include <algorithm>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/sequences/sequence_of.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/segment_kernels.h"

namespace lathe::cuda {
namespace {

// A block of (32, 8) threads takes 32 columns of one sequence at a time. Thread row r adds rows r,
// r + 8, and so on. Then the eight partial sums are added in the order of r.
constexpr int kColumns = 32, kThreadRows = 8;

template <typename T>
__global__ void MeanKernel(T* y, const T* x, SegmentArgs args) {
  __shared__ float partial[kThreadRows][kColumns];
  const int64_t n = args.columns, across = (n + kColumns - 1) / kColumns;
  for (int64_t item = blockIdx.x; item < args.batch * across; item += gridDim.x) {
    const int64_t b = item / across, column = item % across * kColumns + threadIdx.x;
    const int64_t begin = args.cu_seqlens[b], end = args.cu_seqlens[b + 1];
    float sum = 0;
    if (column < n) {
      for (int64_t r = begin + threadIdx.y; r < end; r += kThreadRows)
        sum += Load(x[r * n + column]);
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
      for (int r = 1; r < kThreadRows; ++r) sum += partial[r][threadIdx.x];
      Store(y[b * n + column], end > begin ? sum / static_cast<float>(end - begin) : 0);
    }
    __syncthreads();  // the sums have been read
  }
}

// A block takes a row of dx at a time, so that its threads search for the sequence together.
template <typename T>
__global__ void MeanGradKernel(T* dx, const T* dy, SegmentArgs args) {
  const int64_t n = args.columns;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const RowRange rows = SequenceOf(args.cu_seqlens, args.batch, row);
    const auto length = static_cast<float>(rows.end - rows.begin);
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      if (rows.sequence < 0) {
        dx[row * n + c] = T{};
      } else {
        Store(dx[row * n + c], Load(dy[rows.sequence * n + c]) / length);
      }
    }
  }
}

dim3 GridOf(int64_t blocks) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(blocks, kMaxGrid)));
}

void Mean(void* y, const void* x, DType type, const SegmentArgs& args) {
  if (args.batch == 0 || args.columns == 0) return;
  DispatchNumbers("segment_mean", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MeanKernel<T>, GridOf(args.batch * DivideUp(args.columns, kColumns)),
                 dim3(kColumns, kThreadRows), 0, static_cast<T*>(y), static_cast<const T*>(x),
                 args);
  });
}

void MeanGrad(void* dx, const void* dy, DType type, const SegmentArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  DispatchNumbers("segment_mean", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MeanGradKernel<T>, GridOf(args.rows), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), args);
  });
}

const SegmentKernels table = {Mean, MeanGrad};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
