// The device's embedding look-up, alone or with the layer norm and dropout that follow it.
// EmbeddingKernels in core/kernels/embedding_kernels.h describes it.
#include "lathe/core/cuda/norm_rows.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/embedding_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::LayerNormArgs;

// Returns V columns of a row's sum of embeddings, in addition to `sum` if args.accumulate. They are
// NaN if an id is outside its table.
template <int V>
__device__ Pack<float, V> SumAt(const EmbeddingArgs& args, int64_t row, int64_t column,
                                Pack<float, V> sum = {}) {
#pragma unroll  // with constant indices, args' arrays are read in place
  for (int t = 0; t < EmbeddingArgs::kMaxTables; ++t) {
    if (t >= args.num_tables) break;
    const int32_t id = args.ids[t][row];
    Pack<float, V> values;
    if (id >= 0 && id < args.table_rows[t]) {
      values = LoadPack<V>(args.tables[t] + id * args.columns + column);
    } else {
      for (int v = 0; v < V; ++v) values.v[v] = __int_as_float(0x7fffffff);  // NaN
    }
    const bool alone = t == 0 && !args.accumulate;  // assigned, so that -0 stays -0
    for (int v = 0; v < V; ++v) sum.v[v] = alone ? values.v[v] : sum.v[v] + values.v[v];
  }
  return sum;
}

template <int V>
__global__ void Kernel(float* y, EmbeddingArgs args) {
  const int64_t packs = args.columns / V;
  for (int64_t i = GlobalThread(); i < args.rows * packs; i += NumThreads()) {
    const int64_t row = i / packs, column = i % packs * V;
    Pack<float, V> sum = {};
    if (args.accumulate) sum = LoadPack<V>(y + row * args.columns + column);
    StorePack(y + row * args.columns + column, SumAt<V>(args, row, column, sum));
  }
}

bool AlignedTables(const EmbeddingArgs& args) {
  bool aligned = true;
  for (int t = 0; t < args.num_tables; ++t) aligned = aligned && Aligned16({args.tables[t]});
  return aligned;
}

void Forward(float* y, const EmbeddingArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  constexpr int V = kPack<float>;
  if (args.columns % V == 0 && Aligned16({y}) && AlignedTables(args)) {
    LATHE_LAUNCH(Kernel<V>, GridFor(args.rows * args.columns / V), kBlock, 0, y, args);
  } else {
    LATHE_LAUNCH(Kernel<1>, GridFor(args.rows * args.columns), kBlock, 0, y, args);
  }
}

// Computes this thread's elements of a row's sum of embeddings.
template <int V>
__device__ void LoadSums(float* values, const EmbeddingArgs& args, int64_t row) {
  ForPacks<V>(args.columns, [&](int i, int64_t column, bool valid) {
    Pack<float, V> sum = {};
    if (valid) sum = SumAt<V>(args, row, column);
    for (int v = 0; v < V; ++v) values[i + v] = sum.v[v];
  });
}

template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    NormForwardKernel(T* y, float* mean, float* rstd, const float* weight, const float* bias,
                      EmbeddingArgs args, LayerNormArgs norm) {
  norm.mask = WithCurrentStep(norm.mask);
  __shared__ float scratch[32];
  const int64_t n = args.columns, step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < args.rows;
       row += step) {
    float values[kElements];
    LoadSums<V>(values, args, row);
    const RowMoments moments = MomentsOf<V>(values, n, norm.eps, scratch);
    const float m = moments.mean, s = moments.rstd;
    if (threadIdx.x == 0) {
      mean[row] = m;
      rstd[row] = s;
    }
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column), b = LoadPack<V>(bias + column);
      for (int v = 0; v < V; ++v) values[i + v] = (values[i + v] - m) * s * w.v[v] + b.v[v];
    });
    if (norm.mask.threshold > 0) DropOut<V>(values, row, norm.mask, n);
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      Pack<T, V> out;
      for (int v = 0; v < V; ++v) Store(out.v[v], values[i + v]);
      StorePack(y + row * n + column, out);
    });
  }
}

// The blocks and `partial` are those of layer_norm.cu. The sums are computed again from the tables.
// Reading those takes no longer than reading saved sums would, and saves their memory between the
// passes.
template <typename T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads)
    NormBackwardKernel(float* dz, float* partial, const T* dy, const float* mean, const float* rstd,
                       const float* weight, EmbeddingArgs args, LayerNormArgs norm) {
  norm.mask = WithCurrentStep(norm.mask);
  __shared__ float scratch[32];
  __shared__ float sums[2 * kWarpColumns];
  const int64_t n = args.columns;
  const int64_t begin = args.rows * blockIdx.x / gridDim.x;
  const int64_t end = args.rows * (blockIdx.x + 1) / gridDim.x;
  float dw[kElements] = {}, db[kElements] = {};
  for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
    float d[kElements], xhat[kElements];
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      Pack<T, V> pack = {};
      if (valid) pack = LoadPack<V>(dy + row * n + column);
      for (int v = 0; v < V; ++v) d[i + v] = Load(pack.v[v]);
    });
    if (norm.mask.threshold > 0) DropOut<V>(d, row, norm.mask, n);
    LoadSums<V>(xhat, args, row);
    const float m = mean[row], s = rstd[row];
    float sum_g = 0, sum_gx = 0;
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column);
      for (int v = 0; v < V; ++v) {
        xhat[i + v] = (xhat[i + v] - m) * s;
        sum_g += d[i + v] * w.v[v];
        sum_gx += d[i + v] * w.v[v] * xhat[i + v];
        dw[i + v] += d[i + v] * xhat[i + v];
        db[i + v] += d[i + v];
      }
    });
    if (dz == nullptr) continue;
    sum_g = RowSum(sum_g, scratch) / static_cast<float>(n);
    sum_gx = RowSum(sum_gx, scratch) / static_cast<float>(n);
    ForPacks<V>(n, [&](int i, int64_t column, bool valid) {
      if (!valid) return;
      const Pack<float, V> w = LoadPack<V>(weight + column);
      Pack<float, V> out;
      for (int v = 0; v < V; ++v) {
        out.v[v] = s * (d[i + v] * w.v[v] - sum_g - xhat[i + v] * sum_gx);
      }
      StorePack(dz + row * n + column, out);
    });
  }
  if (partial != nullptr) StoreBlockSums<V>(partial + blockIdx.x * 2 * n, dw, db, n, sums);
}

// Calls body(T{}) with the type of the activations.
template <typename Body>
void WithActivation(DType type, Body body) {
  if (type == DType::kBF16) return body(BFloat16{});
  if (type == DType::kF16) return body(Float16{});
  body(float{});
}

void NormForward(void* y, DType y_type, float* mean, float* rstd, const float* weight,
                 const float* bias, const EmbeddingArgs& args, const LayerNormArgs& norm) {
  if (args.rows == 0) return;
  const bool aligned = AlignedTables(args) && Aligned16({y, weight, bias});
  WithActivation(y_type, [&](auto tag) {
    using T = decltype(tag);
    WithNormShape<kPack<float>>(
        args.columns, aligned, kNormForwardRows, [&](auto v, auto threads, dim3 block) {
          LATHE_LAUNCH((NormForwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                       NormRowsGrid(args.rows, block.y), block, 0, static_cast<T*>(y), mean, rstd,
                       weight, bias, args, norm);
        });
  });
}

void NormBackward(float* dz, float* dweight, float* dbias, float* partial, const void* dy,
                  DType y_type, const float* mean, const float* rstd, const float* weight,
                  const EmbeddingArgs& args, const LayerNormArgs& norm) {
  if (args.rows == 0) return;
  const int64_t n = args.columns, chunks = NormChunks(args.rows, n);
  const bool aligned = AlignedTables(args) && Aligned16({dz, dy, weight});
  float* const sums = dweight == nullptr ? nullptr : partial;
  WithActivation(y_type, [&](auto tag) {
    using T = decltype(tag);
    WithNormShape<kPack<float>>(
        n, aligned, kNormBackwardRows, [&](auto v, auto threads, dim3 block) {
          LATHE_LAUNCH((NormBackwardKernel<T, decltype(v)::value, decltype(threads)::value>),
                       dim3(static_cast<unsigned>(chunks)), block, 0, dz, sums,
                       static_cast<const T*>(dy), mean, rstd, weight, args, norm);
        });
  });
  if (dweight != nullptr) AddNormPartials(dweight, dbias, partial, chunks, n);
}

const EmbeddingKernels table = {Forward, NormForward, NormBackward};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
