// The device's fused dropout + residual + layer norm. core/cpu/layer_norm.h describes it. Rows are
// held in registers (norm_rows.h).
#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/norm_rows.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::LayerNormArgs;
using cpu::LayerNormKernels;

template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(T* y, T* z, float* mean, float* rstd, const T* x, const T* residual,
                  const float* weight, const float* bias, LayerNormArgs args) {
  args.mask = WithCurrentStep(args.mask);
  __shared__ float scratch[32];
  const int64_t n = args.n, step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < args.rows;
       row += step) {
    float values[kElements];
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      Pack<T, V> pack = {};
      if (valid) pack = LoadPack<V>(x + row * n + column);
      for (int v = 0; v < V; ++v) values[i + v] = Load(pack.v[v]);
    });
    if (args.mask.threshold > 0) DropOut<V>(values, row, args.mask, n);
    if (residual != nullptr) {
      ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
        if (!valid) return;
        const Pack<T, V> pack = LoadPack<V>(residual + row * n + column);
        for (int v = 0; v < V; ++v) values[i + v] += Load(pack.v[v]);
      });
    }
    const RowMoments moments = MomentsOf<V>(values, n, args.eps, scratch);
    const float m = moments.mean, s = moments.rstd;
    if (threadIdx.x == 0) {
      mean[row] = m;
      rstd[row] = s;
    }
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column), b = LoadPack<V>(bias + column);
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) Store(out.v[v], (values[i + v] - m) * s * w.v[v] + b.v[v]);
      StorePack(y + row * n + column, out);
      if (z == x) return;
      for (int v = 0; v < V; ++v) Store(out.v[v], values[i + v]);
      StorePack(z + row * n + column, out);
    });
  }
}

// Block c takes the c-th of gridDim.x chunks of the rows. Its warps (or the block as a whole) take
// these rows one after the other. The block writes its sums of weight and bias gradients to row c
// of `partial`, which may be null. It is one function because its row and its sums stay in
// registers through all steps.
template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(T* dz, T* dx, float* partial, const T* dy, const T* z, const float* mean,
                   const float* rstd, const float* weight, LayerNormArgs args) {
  args.mask = WithCurrentStep(args.mask);
  __shared__ float scratch[32];
  __shared__ float sums[2 * kWarpColumns];
  const int64_t n = args.n;
  const int64_t begin = args.rows * blockIdx.x / gridDim.x;
  const int64_t end = args.rows * (blockIdx.x + 1) / gridDim.x;
  float dw[kElements] = {}, db[kElements] = {};
  for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
    Pack<T, V> dy_packs[kElements / V], z_packs[kElements / V];
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      dy_packs[i / V] = {};
      z_packs[i / V] = {};
      if (!valid) return;
      dy_packs[i / V] = LoadPack<V>(dy + row * n + column);
      z_packs[i / V] = LoadPack<V>(z + row * n + column);
    });
    const float m = mean[row], s = rstd[row];
    float sum_g = 0, sum_gx = 0;
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column);
      for (int v = 0; v < V; ++v) {
        const float d = Load(dy_packs[i / V].v[v]);
        const float xhat = (Load(z_packs[i / V].v[v]) - m) * s;
        sum_g += d * w.v[v];
        sum_gx += d * w.v[v] * xhat;
        dw[i + v] += d * xhat;
        db[i + v] += d;
      }
    });
    sum_g = RowSum(sum_g, scratch) / static_cast<float>(n);
    sum_gx = RowSum(sum_gx, scratch) / static_cast<float>(n);
    // dx is computed from dz as it is stored, that is, rounded to T.
    float stored[kElements] = {};
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column);
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) {
        const float g = Load(dy_packs[i / V].v[v]) * w.v[v];
        const float xhat = (Load(z_packs[i / V].v[v]) - m) * s;
        Store(out.v[v], s * (g - sum_g - xhat * sum_gx));
        stored[i + v] = Load(out.v[v]);
      }
      StorePack(dz + row * n + column, out);
    });
    if (dx == nullptr) continue;
    if (args.mask.threshold > 0) DropOut<V>(stored, row, args.mask, n);
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) Store(out.v[v], stored[i + v]);
      StorePack(dx + row * n + column, out);
    });
  }
  if (partial == nullptr) return;
  StoreBlockSums<V>(partial + blockIdx.x * 2 * n, dw, db, n, sums);
}

// Thread row r adds chunks r, r + 32, and so on. Then the sums of the thread rows are added in the
// order of r.
__global__ void __launch_bounds__(1024)
    AddPartialsKernel(float* dweight, float* dbias, const float* partial, int64_t chunks,
                      int64_t n) {
  __shared__ float of_rows[32][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < 2 * n) {
#pragma unroll 4
    for (int64_t c = threadIdx.y; c < chunks; c += 32) sum += partial[c * 2 * n + column];
  }
  of_rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= 2 * n) return;
  for (int r = 1; r < 32; ++r) sum += of_rows[r][threadIdx.x];
  float& to = column < n ? dweight[column] : dbias[column - n];
  to += sum;
}

template <typename T>
void Forward(T* y, T* z, float* mean, float* rstd, const T* x, const T* residual,
             const float* weight, const float* bias, const LayerNormArgs& args) {
  if (args.rows == 0) return;
  const bool aligned = Aligned16({y, z, x, residual, weight, bias});
  WithNormShape<kPack<T>>(args.n, aligned, kNormForwardRows, [&](auto v, auto threads, dim3 block) {
    LATHE_LAUNCH((ForwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                 NormRowsGrid(args.rows, block.y), block, 0, y, z, mean, rstd, x, residual, weight,
                 bias, args);
  });
}

template <typename T>
void Backward(T* dz, T* dx, float* dweight, float* dbias, float* partial, const T* dy, const T* z,
              const float* mean, const float* rstd, const float* weight,
              const LayerNormArgs& args) {
  if (args.rows == 0) return;
  const int64_t n = args.n, chunks = NormChunks(args.rows, n);
  const bool aligned = Aligned16({dz, dx, dy, z, weight});
  float* const sums = dweight == nullptr ? nullptr : partial;
  WithNormShape<kPack<T>>(n, aligned, kNormBackwardRows, [&](auto v, auto threads, dim3 block) {
    LATHE_LAUNCH((BackwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                 dim3(static_cast<unsigned>(chunks)), block, 0, dz, dx, sums, dy, z, mean, rstd,
                 weight, args);
  });
  if (dweight != nullptr) AddNormPartials(dweight, dbias, partial, chunks, n);
}

template <typename T>
constexpr LayerNormKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>};
}

const LayerNormKernels table = {.f32 = TableFor<float>(),
                                .f64 = {},
                                .bf16 = TableFor<BFloat16>(),
                                .f16 = TableFor<Float16>(),
                                .chunks = NormChunks};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace

void AddNormPartials(float* dweight, float* dbias, const float* partial, int64_t chunks,
                     int64_t n) {
  const dim3 grid(static_cast<unsigned>(DivideUp(2 * n, 32)));
  LATHE_LAUNCH(AddPartialsKernel, grid, dim3(32, 32), 0, dweight, dbias, partial, chunks, n);
}

}  // namespace lathe::cuda
