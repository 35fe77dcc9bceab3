// The device's root mean square norm. core/cpu/norm/rms_norm.h describes it. Rows are held in
// registers (norm_rows.h).
#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/norm/rms_norm.h"
#include "lathe/core/cuda/norm_rows.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::RmsNormArgs;
using cpu::RmsNormKernels;

template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(T* y, float* rstd, const T* x, const float* weight, RmsNormArgs args) {
  __shared__ float scratch[32];
  const int64_t n = args.n, step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < args.rows;
       row += step) {
    float values[kElements];
    float squares = 0;
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      Pack<T, V> pack = {};
      if (valid) pack = LoadPack<V>(x + row * n + column);
      for (int v = 0; v < V; ++v) {
        values[i + v] = Load(pack.v[v]);
        squares += values[i + v] * values[i + v];
      }
    });
    const float mean = RowSum(squares, scratch) / static_cast<float>(n);
    const float s = 1 / sqrtf(mean + static_cast<float>(args.eps));
    if (threadIdx.x == 0) rstd[row] = s;
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column);
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) Store(out.v[v], values[i + v] * s * w.v[v]);
      StorePack(y + row * n + column, out);
    });
  }
}

// Stores the block's sums, which are added over its warps in order. to: [n]; sums: kWarpColumns
// floats in shared memory.
template <int V>
__device__ void StoreSums(float* to, const float* dw, int64_t n, float* sums) {
  for (unsigned warp = 0; warp < blockDim.y; ++warp) {
    const bool is_last = warp + 1 == blockDim.y;
    if (threadIdx.y == warp) {
      ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
        for (int v = 0; v < V && valid; ++v) {
          const float sum = dw[i + v] + (warp == 0 ? 0 : sums[column + v]);
          (is_last ? to : sums)[column + v] = sum;
        }
      });
    }
    __syncthreads();
  }
}

// Block c takes the c-th of gridDim.x chunks of the rows. Its warps (or the block as a whole) take
// these rows one after the other. The block writes its sums of weight gradients to row c of
// `partial`, which may be null.
template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd,
                   const float* weight, RmsNormArgs args) {
  __shared__ float scratch[32];
  __shared__ float sums[kWarpColumns];
  const int64_t n = args.n;
  const int64_t begin = args.rows * blockIdx.x / gridDim.x;
  const int64_t end = args.rows * (blockIdx.x + 1) / gridDim.x;
  float dw[kElements] = {};
  for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
    Pack<T, V> dy_packs[kElements / V], x_packs[kElements / V];
    const float s = rstd[row];
    float sum = 0;
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      dy_packs[i / V] = {};
      x_packs[i / V] = {};
      if (!valid) return;
      dy_packs[i / V] = LoadPack<V>(dy + row * n + column);
      x_packs[i / V] = LoadPack<V>(x + row * n + column);
      const Pack<float, V> w = LoadPack<V>(weight + column);
      for (int v = 0; v < V; ++v) {
        const float d = Load(dy_packs[i / V].v[v]), xhat = Load(x_packs[i / V].v[v]) * s;
        sum += d * w.v[v] * xhat;
        dw[i + v] += d * xhat;
      }
    });
    const float mean = RowSum(sum, scratch) / static_cast<float>(n);
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column);
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) {
        const float xhat = Load(x_packs[i / V].v[v]) * s;
        Store(out.v[v], s * (Load(dy_packs[i / V].v[v]) * w.v[v] - xhat * mean));
      }
      StorePack(dx + row * n + column, out);
    });
  }
  if (partial == nullptr) return;
  StoreSums<V>(partial + blockIdx.x * n, dw, n, sums);
}

// Thread row r adds chunks r, r + 32, and so on. Then the sums of the thread rows are added in the
// order of r.
__global__ void __launch_bounds__(1024)
    AddPartialsKernel(float* dweight, const float* partial, int64_t chunks, int64_t n) {
  __shared__ float of_rows[32][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < n) {
    for (int64_t c = threadIdx.y; c < chunks; c += 32) sum += partial[c * n + column];
  }
  of_rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= n) return;
  for (int r = 1; r < 32; ++r) sum += of_rows[r][threadIdx.x];
  dweight[column] += sum;
}

template <typename T>
void Forward(T* y, float* rstd, const T* x, const float* weight, const RmsNormArgs& args) {
  if (args.rows == 0) return;
  const bool aligned = Aligned16({y, x, weight});
  WithNormShape<kPack<T>>(args.n, aligned, kNormForwardRows, [&](auto v, auto threads, dim3 block) {
    LATHE_LAUNCH((ForwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                 NormRowsGrid(args.rows, block.y), block, 0, y, rstd, x, weight, args);
  });
}

template <typename T>
void Backward(T* dx, float* dweight, float* partial, const T* dy, const T* x, const float* rstd,
              const float* weight, const RmsNormArgs& args) {
  if (args.rows == 0) return;
  const int64_t n = args.n, chunks = NormChunks(args.rows, n);
  const bool aligned = Aligned16({dx, dy, x, weight});
  float* const sums = dweight == nullptr ? nullptr : partial;
  WithNormShape<kPack<T>>(n, aligned, kNormBackwardRows, [&](auto v, auto threads, dim3 block) {
    LATHE_LAUNCH((BackwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                 dim3(static_cast<unsigned>(chunks)), block, 0, dx, sums, dy, x, rstd, weight,
                 args);
  });
  if (dweight == nullptr) return;
  LATHE_LAUNCH(AddPartialsKernel, dim3(static_cast<unsigned>(DivideUp(n, 32))), dim3(32, 32), 0,
               dweight, partial, chunks, n);
}

template <typename T>
constexpr RmsNormKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>};
}

const RmsNormKernels table = {.f32 = TableFor<float>(),
                              .f64 = {},
                              .bf16 = TableFor<BFloat16>(),
                              .f16 = TableFor<Float16>(),
                              .chunks = NormChunks};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
