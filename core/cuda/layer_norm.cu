// Dropout + residual + layer normalisation: see core/cpu/layer_norm.h.
//
// A row is held in registers, by a warp up to 1,024 columns and by a block beyond. Its columns form
// nb = ceil(n / 4) groups {b, nb + b, 2 nb + b, 3 nb + b}, which share a block of dropout's random
// bits; a thread holds whole groups: V neighbouring ones at a time, 16 bytes of each quarter row.
#include <algorithm>

#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::LayerNormArgs;
using cpu::LayerNormKernels;

constexpr int kElements = 32;                       // of a row, held by one thread
constexpr int kWarpColumns = 1024;                  // rows that a warp can hold
constexpr int kForwardRows = 4, kBackwardRows = 8;  // rows of a block at once, a warp each
constexpr int kWideBlock = 1024;

// Calls body(i, column, valid): V elements, the i-th and following of this thread's kElements, lie
// at `column`. Unless valid, the row has no such columns.
template <int V, typename Body>
__device__ void ForPacks(int64_t n, Body body) {
  const int64_t quarter = (n + 3) / 4;
#pragma unroll
  for (int j = 0; j < kElements / (4 * V); ++j) {
    const int64_t b = (threadIdx.x + static_cast<int64_t>(j) * blockDim.x) * V;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int64_t column = q * quarter + b;
      body((j * 4 + q) * V, column, b < quarter && column < n);
    }
  }
}

// The sum over the row's threads: a warp, or the block. scratch: shared, 32 floats.
__device__ float RowSum(float x, float* scratch) {
  return blockDim.x == 32 ? WarpSum(x) : BlockSum(x, scratch);
}

// Zeroes what is dropped of this thread's elements of the row and scales the others.
template <int V>
__device__ void DropOut(float* x, int64_t row, const LayerNormArgs& args) {
  const int32_t sample = args.mask.row_samples[row], position = args.mask.row_positions[row];
  const float scale = static_cast<float>(args.mask.scale);
#pragma unroll
  for (int j = 0; j < kElements / (4 * V); ++j) {
    const int64_t b = (threadIdx.x + static_cast<int64_t>(j) * blockDim.x) * V;
    if (b >= (args.n + 3) / 4) break;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const PhiloxBlock bits =
          DropoutBits(args.mask, sample, position, static_cast<uint32_t>(b + i));
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        float& value = x[(j * 4 + q) * V + i];
        value = bits.v[q] < args.mask.threshold ? 0 : value * scale;
      }
    }
  }
}

template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(T* y, T* z, float* mean, float* rstd, const T* x, const T* residual,
                  const float* weight, const float* bias, LayerNormArgs args) {
  args.mask = Resolved(args.mask);
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
    if (args.mask.threshold > 0) DropOut<V>(values, row, args);
    if (residual != nullptr) {
      ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
        if (!valid) return;
        const Pack<T, V> pack = LoadPack<V>(residual + row * n + column);
        for (int v = 0; v < V; ++v) values[i + v] += Load(pack.v[v]);
      });
    }
    float sum = 0;
    ForPacks<V>(n, [&](int i, int64_t, bool valid) {
      for (int v = 0; v < V; ++v) sum += valid ? values[i + v] : 0;
    });
    const float m = RowSum(sum, scratch) / static_cast<float>(n);
    float squares = 0;
    ForPacks<V>(n, [&](int i, int64_t, bool valid) {
      for (int v = 0; v < V; ++v) {
        squares += valid ? (values[i + v] - m) * (values[i + v] - m) : 0;
      }
    });
    const float variance = RowSum(squares, scratch) / static_cast<float>(n);
    const float s = 1 / sqrtf(variance + static_cast<float>(args.eps));
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

// Block c takes the c-th of gridDim.x parts of the rows, its warps (or the block) one after the
// other, and leaves the sums of its rows in row c of partial, which may be null.
template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(T* dz, T* dx, float* partial, const T* dy, const T* z, const float* mean,
                   const float* rstd, const float* weight, LayerNormArgs args) {
  args.mask = Resolved(args.mask);
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
    // What is stored of dz is what dropout's gradient starts from.
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
    if (args.mask.threshold > 0) DropOut<V>(stored, row, args);
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) Store(out.v[v], stored[i + v]);
      StorePack(dx + row * n + column, out);
    });
  }
  if (partial == nullptr) return;
  float* const to = partial + blockIdx.x * 2 * n;
  if (blockDim.y == 1) {
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      for (int v = 0; v < V && valid; ++v) {
        to[column + v] = dw[i + v];
        to[n + column + v] = db[i + v];
      }
    });
    return;
  }
  for (unsigned warp = 0; warp < blockDim.y; ++warp) {
    if (threadIdx.y == warp) {
      ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
        for (int v = 0; v < V && valid; ++v) {
          sums[column + v] = dw[i + v] + (warp == 0 ? 0 : sums[column + v]);
          sums[n + column + v] = db[i + v] + (warp == 0 ? 0 : sums[n + column + v]);
        }
      });
    }
    __syncthreads();
  }
  for (int64_t c = threadIdx.y * 32 + threadIdx.x; c < 2 * n; c += blockDim.y * 32) to[c] = sums[c];
}

// dweight += the sums over chunks of partial's first n columns, dbias of the others: thread row r
// adds chunks r, r + 32, ..., then the sums of the thread rows are added in their order.
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

int64_t Chunks(int64_t rows, int64_t n) {
  const int64_t blocks = n <= kWarpColumns ? 264 : 132;  // two or one for each multiprocessor
  return std::min(blocks, (rows + kBackwardRows - 1) / kBackwardRows);
}

// Calls body(integral constants V, most threads of a block; the block's shape): rows_of_block rows
// of n columns at a time where warps can hold them.
template <typename T, typename Body>
void WithShape(int64_t n, bool aligned, int rows_of_block, Body body) {
  const auto with = [&](auto v) {
    constexpr int V = decltype(v)::value;
    const int64_t groups = ((n + 3) / 4 + V - 1) / V, per_thread = kElements / (4 * V);
    const int64_t threads = ((groups + per_thread - 1) / per_thread + 31) / 32 * 32;
    if (threads == 32) {
      body(v, std::integral_constant<int, 256>{}, dim3(32, rows_of_block));
    } else if (threads <= 256) {
      body(v, std::integral_constant<int, 256>{}, dim3(static_cast<unsigned>(threads)));
    } else {
      body(v, std::integral_constant<int, kWideBlock>{}, dim3(static_cast<unsigned>(threads)));
    }
  };
  if (aligned && n % (4 * kPack<T>) == 0) {
    with(std::integral_constant<int, kPack<T>>{});
  } else {
    with(std::integral_constant<int, 1>{});
  }
}

template <typename T>
void Forward(T* y, T* z, float* mean, float* rstd, const T* x, const T* residual,
             const float* weight, const float* bias, const LayerNormArgs& args) {
  if (args.rows == 0) return;
  const bool aligned = Aligned16({y, z, x, residual, weight, bias});
  WithShape<T>(args.n, aligned, kForwardRows, [&](auto v, auto threads, dim3 block) {
    const int64_t blocks = (args.rows + block.y - 1) / block.y;
    const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 20)));
    LATHE_LAUNCH((ForwardKernel<T, decltype(v)::value, decltype(threads)::value>), grid, block, 0,
                 y, z, mean, rstd, x, residual, weight, bias, args);
  });
}

template <typename T>
void Backward(T* dz, T* dx, float* dweight, float* dbias, float* partial, const T* dy, const T* z,
              const float* mean, const float* rstd, const float* weight,
              const LayerNormArgs& args) {
  if (args.rows == 0) return;
  const int64_t n = args.n, chunks = Chunks(args.rows, n);
  const bool aligned = Aligned16({dz, dx, dy, z, weight});
  float* const sums = dweight == nullptr ? nullptr : partial;
  WithShape<T>(n, aligned, kBackwardRows, [&](auto v, auto threads, dim3 block) {
    LATHE_LAUNCH((BackwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                 dim3(static_cast<unsigned>(chunks)), block, 0, dz, dx, sums, dy, z, mean, rstd,
                 weight, args);
  });
  if (dweight == nullptr) return;
  const dim3 grid(static_cast<unsigned>((2 * n + 31) / 32));
  LATHE_LAUNCH(AddPartialsKernel, grid, dim3(32, 32), 0, dweight, dbias, partial, chunks, n);
}

template <typename T>
constexpr LayerNormKernels::Of<T> Of() {
  return {Forward<T>, Backward<T>};
}

const LayerNormKernels table = {
    .f32 = Of<float>(), .f64 = {}, .bf16 = Of<BFloat16>(), .f16 = Of<Float16>(), .chunks = Chunks};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
