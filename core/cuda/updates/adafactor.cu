// Adafactor: means of squares over rows and columns, the size of each range's update, then the
// step.
#include "lathe/core/cuda/chunks.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/update_kernels.h"

namespace lathe::cuda {
namespace {

using update_rules::Adafactor;
using update_rules::FactoredShape;

constexpr int kMostBlocks = 64;  // for each range, in kernels with a row of blocks for each range
constexpr int kTile = 32;        // columns that a block sums at a time

__device__ inline float ScaleOf(const UpdateMemory& memory) {
  return memory.clip == nullptr ? 1.0f : *memory.clip;
}

// Moves the moments of rows towards the means of squares. A vector has a moment for each element.
__global__ void AdafactorRows(UpdateMemory memory, Adafactor rule) {
  const float scale = ScaleOf(memory);
  if (!IsFinite(scale)) return;
  const DeviceRange range = memory.ranges[blockIdx.y];
  const float take = memory.rates[blockIdx.y].take;
  const FactoredShape shape = rule.shapes[range.counter];
  const float* const g = memory.g + range.begin;
  float* const moments = memory.moments[0] + shape.begin;
  if (shape.cols == 0) {
    for (int64_t i = GlobalThread(); i < shape.rows; i += NumThreads()) {
      const float grad = g[i] * scale;
      moments[i] += take * (grad * grad + rule.added - moments[i]);
    }
    return;
  }
  for (int64_t row = GlobalThread() / 32; row < shape.NumRows(); row += NumThreads() / 32) {
    double sum = 0;
    for (int64_t c = threadIdx.x % 32; c < shape.cols; c += 32) {
      const float grad = g[row * shape.cols + c] * scale;
      sum += static_cast<double>(grad) * grad + rule.added;
    }
    sum = WarpSum(sum);
    if (threadIdx.x % 32 != 0) continue;
    const float mean = static_cast<float>(sum / static_cast<double>(shape.cols));
    moments[row] += take * (mean - moments[row]);
  }
}

// The same for columns. A block sums kTile columns at a time: each of its warps has some rows.
__global__ void AdafactorColumns(UpdateMemory memory, Adafactor rule) {
  __shared__ double partial[kBlock / 32][kTile];
  const float scale = ScaleOf(memory);
  if (!IsFinite(scale)) return;
  const DeviceRange range = memory.ranges[blockIdx.y];
  const float take = memory.rates[blockIdx.y].take;
  const FactoredShape shape = rule.shapes[range.counter];
  if (shape.cols == 0) return;
  float* const moments = memory.moments[0] + shape.begin + shape.NumRows();
  const int64_t tiles = (shape.cols + kTile - 1) / kTile;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t tile = blockIdx.x; tile < shape.matrices * tiles; tile += gridDim.x) {
    const int64_t matrix = tile / tiles, c = tile % tiles * kTile + lane;
    const float* const g = memory.g + range.begin + matrix * shape.rows * shape.cols;
    double sum = 0;
    for (int64_t row = warp; c < shape.cols && row < shape.rows; row += kBlock / 32) {
      const float grad = g[row * shape.cols + c] * scale;
      sum += static_cast<double>(grad) * grad + rule.added;
    }
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < shape.cols) {
      for (int w = 1; w < kBlock / 32; ++w) sum += partial[w][lane];
      const float mean = static_cast<float>(sum / static_cast<double>(shape.rows));
      float& moment = moments[matrix * shape.cols + c];
      moment += take * (mean - moment);
    }
    __syncthreads();
  }
}

// means: of the moments of each matrix's rows. One block for each range.
__global__ void AdafactorMeans(UpdateMemory memory, Adafactor rule, float* means) {
  __shared__ double scratch[32];
  if (!IsFinite(ScaleOf(memory))) return;
  const FactoredShape shape = rule.shapes[memory.ranges[blockIdx.x].counter];
  if (shape.cols == 0) return;
  for (int64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    const float* const moments = memory.moments[0] + shape.begin + matrix * shape.rows;
    double sum = 0;
    for (int64_t row = threadIdx.x; row < shape.rows; row += kBlock) sum += moments[row];
    sum = BlockSum(sum, scratch);
    if (threadIdx.x == 0) {
      means[shape.means + matrix] =
          rule.LimitedMean(static_cast<float>(sum / static_cast<double>(shape.rows)));
    }
  }
}

// Returns the update of element i of a parameter, whose gradient is `grad`.
__device__ inline float UpdateOf(const Adafactor& rule, const FactoredShape& shape,
                                 const float* moments, const float* means, int64_t i, float grad) {
  if (shape.cols == 0) return grad / sqrtf(rule.Limited(moments[i]));
  const int64_t row = i / shape.cols, matrix = row / shape.rows;
  const float col = moments[shape.NumRows() + matrix * shape.cols + i % shape.cols];
  return rule.Update(grad, moments[row], col, means[matrix]);
}

__global__ void AdafactorSums(UpdateMemory memory, Adafactor rule, const float* means,
                              double* sums) {
  __shared__ double scratch[32];
  const float scale = ScaleOf(memory);
  if (!IsFinite(scale)) return;
  const Chunk chunk = FindChunk(memory.ranges, memory.count, blockIdx.x);
  const DeviceRange range = memory.ranges[chunk.range];
  const FactoredShape shape = rule.shapes[range.counter];
  const float* const moments = memory.moments[0] + shape.begin;
  double values = 0, updates = 0;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.begin + chunk.n; i += kBlock) {
    const double p = memory.p[i], u = UpdateOf(rule, shape, moments, means + shape.means,
                                               i - range.begin, memory.g[i] * scale);
    values += p * p;
    updates += u * u;
  }
  values = BlockSum(values, scratch);
  updates = BlockSum(updates, scratch);
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] = values;
  sums[2 * blockIdx.x + 1] = updates;
}

// One block for each range.
__global__ void AdafactorFactors(UpdateMemory memory, Adafactor rule, const double* sums,
                                 float* factors) {
  __shared__ double scratch[32];
  if (!IsFinite(ScaleOf(memory))) return;
  const DeviceRange range = memory.ranges[blockIdx.x];
  const int64_t end =
      blockIdx.x + 1 < memory.count ? memory.ranges[blockIdx.x + 1].first_chunk : memory.chunks;
  double values = 0, updates = 0;
  for (int64_t i = range.first_chunk + threadIdx.x; i < end; i += kBlock) {
    values += sums[2 * i];
    updates += sums[2 * i + 1];
  }
  values = BlockSum(values, scratch);
  updates = BlockSum(updates, scratch);
  if (threadIdx.x != 0) return;
  const double step = memory.rates[blockIdx.x].step_size;
  factors[blockIdx.x] =
      static_cast<float>(rule.Step(values, updates, static_cast<double>(range.n), step));
}

template <typename Narrow>
__global__ void AdafactorStep(UpdateMemory memory, Adafactor rule, const float* means,
                              const float* factors) {
  const float scale = ScaleOf(memory);
  if (!IsFinite(scale)) return;
  const Chunk chunk = FindChunk(memory.ranges, memory.count, blockIdx.x);
  const DeviceRange range = memory.ranges[chunk.range];
  const FactoredShape shape = rule.shapes[range.counter];
  const float* const moments = memory.moments[0] + shape.begin;
  const float decay = memory.rates[chunk.range].decay, factor = factors[chunk.range];
  Narrow* narrow = static_cast<Narrow*>(range.narrow);
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.begin + chunk.n; i += kBlock) {
    const float u =
        UpdateOf(rule, shape, moments, means + shape.means, i - range.begin, memory.g[i] * scale);
    const float value = memory.p[i] * decay - factor * u;
    memory.p[i] = value;
    if (narrow != nullptr) Store(narrow[i - range.begin], value);
  }
}

void Update(const UpdateMemory& memory, const Adafactor& rule) {
  if (memory.chunks == 0) return;
  double* const sums = static_cast<double*>(memory.scratch);
  float* const factors = reinterpret_cast<float*>(sums + 2 * memory.chunks);
  float* const means = factors + memory.count;
  const auto count = static_cast<unsigned>(memory.count);
  const dim3 chunks(static_cast<unsigned>(memory.chunks)), rows(kMostBlocks, count);
  LATHE_LAUNCH(AdafactorRows, rows, kBlock, 0, memory, rule);
  LATHE_LAUNCH(AdafactorColumns, rows, kBlock, 0, memory, rule);
  LATHE_LAUNCH(AdafactorMeans, dim3(count), kBlock, 0, memory, rule, means);
  LATHE_LAUNCH(AdafactorSums, chunks, kBlock, 0, memory, rule, means, sums);
  LATHE_LAUNCH(AdafactorFactors, dim3(count), kBlock, 0, memory, rule, sums, factors);
  DispatchNarrow("Adafactor", memory.narrow_type, [&](auto tag) {
    LATHE_LAUNCH((AdafactorStep<decltype(tag)>), chunks, kBlock, 0, memory, rule, means, factors);
  });
}

const UpdateKernel<Adafactor> table = {Update};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
