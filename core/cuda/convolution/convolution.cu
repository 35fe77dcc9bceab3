// Convolutions over the tokens of packed sequences. ConvolutionKernels in
// core/cpu/convolution/convolution.h describes the kernels.
#include <algorithm>

#include "lathe/core/cpu/convolution/convolution.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::ConvolutionArgs;
using cpu::ConvolutionKernels;
using cpu::TapRange;

dim3 GridOf(int64_t rows) { return dim3(static_cast<unsigned>(std::min<int64_t>(rows, kMaxGrid))); }

// A block takes a row at a time, so that its threads search for the sequence together.
template <bool back, typename T>
__global__ void DepthwiseKernel(T* y, const T* x, const float* w, ConvolutionArgs args) {
  const int64_t n = args.columns;
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    const TapRange taps = cpu::TapsOf(SequenceOf(args.cu_seqlens, args.batch, r), r, args, back);
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      float sum = 0;
      for (int64_t t = taps.begin; t < taps.end; ++t) {
        const int64_t from = back ? r - t + args.before() : r + t - args.before();
        sum += w[t * n + c] * Load(x[from * n + c]);
      }
      Store(y[r * n + c], sum);
    }
  }
}

constexpr int64_t kChunk = 128;  // rows whose gradients of weights a block sums

// Block (i, t, k) sums tap t of columns i kBlock to (i + 1) kBlock over the rows of chunk k, into
// partial: (chunks, taps, columns).
template <typename T>
__global__ void DepthwiseWeightsKernel(float* partial, const T* dy, const T* x,
                                       ConvolutionArgs args) {
  const int64_t n = args.columns, t = blockIdx.y;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= n) return;
  const int64_t first = blockIdx.z * kChunk;
  const int64_t end = first + kChunk < args.rows ? first + kChunk : args.rows;
  float sum = 0;
  RowRange sequence;
  for (int64_t r = first; r < end; ++r) {
    if (!sequence.Has(r)) sequence = SequenceOf(args.cu_seqlens, args.batch, r);
    const int64_t from = r + t - args.before();
    if (sequence.Has(from)) sum += Load(dy[r * n + c]) * Load(x[from * n + c]);
  }
  partial[(blockIdx.z * args.taps + t) * n + c] = sum;
}

// Sums partial: (chunks, n) over the chunks, in their order.
__global__ void AddChunksKernel(float* to, const float* partial, int64_t chunks, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    float sum = 0;
    for (int64_t k = 0; k < chunks; ++k) sum += partial[k * n + i];
    to[i] = sum;
  }
}

__device__ inline int64_t RowOf(int64_t out_row, const ConvolutionArgs& args) {
  return args.first_only ? args.cu_seqlens[out_row] : out_row;
}

template <typename T>
__global__ void DynamicKernel(T* y, const T* x, const float* w, ConvolutionArgs args) {
  const int64_t n = args.columns;
  for (int64_t out = blockIdx.x; out < args.out_rows(); out += gridDim.x) {
    const int64_t r = RowOf(out, args);
    const TapRange taps = cpu::TapsOf(SequenceOf(args.cu_seqlens, args.batch, r), r, args, false);
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      const float* const weights = w + (out * args.heads + c / args.width()) * args.taps;
      float sum = 0;
      for (int64_t t = taps.begin; t < taps.end; ++t) {
        sum += weights[t] * Load(x[(r + t - args.before()) * n + c]);
      }
      Store(y[out * n + c], sum);
    }
  }
}

template <typename T>
__global__ void DynamicInputsKernel(T* dx, const T* dy, const float* w, ConvolutionArgs args) {
  const int64_t n = args.columns;
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    const RowRange sequence = SequenceOf(args.cu_seqlens, args.batch, r);
    TapRange taps = cpu::TapsOf(sequence, r, args, true);
    if (args.first_only && taps.begin < taps.end) taps.begin = r + args.before() - sequence.begin;
    const int64_t last = args.first_only ? sequence.index + taps.begin : r + args.before();
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      const int64_t head = c / args.width();
      float sum = 0;
      for (int64_t t = taps.begin; t < taps.end; ++t) {
        const int64_t out = last - t;
        sum += w[(out * args.heads + head) * args.taps + t] * Load(dy[out * n + c]);
      }
      Store(dx[r * n + c], sum);
    }
  }
}

// A warp sums one head and tap of a row.
template <typename T>
__global__ void DynamicWeightsKernel(float* dw, const T* dy, const T* x, ConvolutionArgs args) {
  const int64_t n = args.columns, width = args.width(), lane = threadIdx.x % 32;
  for (int64_t out = blockIdx.x; out < args.out_rows(); out += gridDim.x) {
    const int64_t r = RowOf(out, args);
    const TapRange taps = cpu::TapsOf(SequenceOf(args.cu_seqlens, args.batch, r), r, args, false);
    for (int64_t i = threadIdx.x / 32; i < args.heads * args.taps; i += blockDim.x / 32) {
      const int64_t t = i % args.taps, first = i / args.taps * width;
      float sum = 0;
      if (t >= taps.begin && t < taps.end) {
        const T* const d = dy + out * n + first;
        const T* const from = x + (r + t - args.before()) * n + first;
        for (int64_t c = lane; c < width; c += 32) sum += Load(d[c]) * Load(from[c]);
      }
      sum = WarpSum(sum);
      if (lane == 0) dw[out * args.heads * args.taps + i] = sum;
    }
  }
}

template <bool back, typename T>
void Depthwise(T* y, const T* x, const float* w, const ConvolutionArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  LATHE_LAUNCH((DepthwiseKernel<back, T>), GridOf(args.rows), kBlock, 0, y, x, w, args);
}

template <typename T>
void DepthwiseWeights(float* dw, const T* dy, const T* x, const ConvolutionArgs& args) {
  const int64_t n = args.taps * args.columns, chunks = DivideUp(args.rows, kChunk);
  if (n == 0) return;
  float* const partial =
      static_cast<float*>(Workspace(chunks * n * static_cast<int64_t>(sizeof(float))));
  if (chunks > 0) {
    const dim3 grid(static_cast<unsigned>(DivideUp(args.columns, kBlock)),
                    static_cast<unsigned>(args.taps), static_cast<unsigned>(chunks));
    LATHE_LAUNCH(DepthwiseWeightsKernel<T>, grid, kBlock, 0, partial, dy, x, args);
  }
  LATHE_LAUNCH(AddChunksKernel, GridFor(n), kBlock, 0, dw, partial, chunks, n);
}

template <typename T>
void Dynamic(T* y, const T* x, const float* w, const ConvolutionArgs& args) {
  if (args.out_rows() == 0 || args.columns == 0) return;
  LATHE_LAUNCH(DynamicKernel<T>, GridOf(args.out_rows()), kBlock, 0, y, x, w, args);
}

template <typename T>
void DynamicInputs(T* dx, const T* dy, const float* w, const ConvolutionArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  LATHE_LAUNCH(DynamicInputsKernel<T>, GridOf(args.rows), kBlock, 0, dx, dy, w, args);
}

template <typename T>
void DynamicWeights(float* dw, const T* dy, const T* x, const ConvolutionArgs& args) {
  if (args.out_rows() == 0) return;
  LATHE_LAUNCH(DynamicWeightsKernel<T>, GridOf(args.out_rows()), kBlock, 0, dw, dy, x, args);
}

template <typename T>
constexpr ConvolutionKernels::ForType<T> TableFor() {
  return {Depthwise<false, T>, Depthwise<true, T>, DepthwiseWeights<T>,
          Dynamic<T>,          DynamicInputs<T>,   DynamicWeights<T>};
}

const ConvolutionKernels table = {
    .f32 = TableFor<float>(), .f64 = {}, .bf16 = TableFor<BFloat16>(), .f16 = TableFor<Float16>()};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
