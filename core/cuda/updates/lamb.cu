// LAMB: moments and sums of squares by chunks, a ratio for each range, then the step.
#include "lathe/core/cuda/chunks.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/update_kernels.h"

namespace lathe::cuda {
namespace {

using update_rules::Lamb;

// Adds up a block's squares of values and of directions into sums[2 * chunk] and the next.
__global__ void LambMoments(UpdateMemory memory, Lamb rule, double* sums) {
  __shared__ double scratch[32];
  const float scale = memory.clip == nullptr ? 1.0f : *memory.clip;
  if (!IsFinite(scale)) return;
  const Chunk chunk = FindChunk(memory.ranges, memory.count, blockIdx.x);
  const DeviceRates rates = memory.rates[chunk.range];
  double values = 0, directions = 0;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.begin + chunk.n; i += kBlock) {
    float m = memory.moments[0][i], v = memory.moments[1][i];
    const float p = memory.p[i];
    rule.UpdateMoments(m, v, memory.g[i] * scale);
    memory.moments[0][i] = m;
    memory.moments[1][i] = v;
    const double direction = rule.Direction(p, m, v, rates);
    values += static_cast<double>(p) * p;
    directions += direction * direction;
  }
  values = BlockSum(values, scratch);
  directions = BlockSum(directions, scratch);
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] = values;
  sums[2 * blockIdx.x + 1] = directions;
}

// One block for each range.
__global__ void LambRatios(UpdateMemory memory, const double* sums, float* ratios) {
  __shared__ double scratch[32];
  const int64_t first = memory.ranges[blockIdx.x].first_chunk;
  const int64_t end =
      blockIdx.x + 1 < memory.count ? memory.ranges[blockIdx.x + 1].first_chunk : memory.chunks;
  double values = 0, directions = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kBlock) {
    values += sums[2 * i];
    directions += sums[2 * i + 1];
  }
  values = BlockSum(values, scratch);
  directions = BlockSum(directions, scratch);
  if (threadIdx.x == 0) ratios[blockIdx.x] = static_cast<float>(Lamb::Ratio(values, directions));
}

template <typename Narrow>
__global__ void LambStep(UpdateMemory memory, Lamb rule, const float* ratios) {
  if (memory.clip != nullptr && !IsFinite(*memory.clip)) return;
  const Chunk chunk = FindChunk(memory.ranges, memory.count, blockIdx.x);
  const DeviceRange range = memory.ranges[chunk.range];
  const DeviceRates rates = memory.rates[chunk.range];
  const float step = rates.step_size * ratios[chunk.range];
  Narrow* narrow = static_cast<Narrow*>(range.narrow);
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.begin + chunk.n; i += kBlock) {
    const float p = memory.p[i];
    const float value =
        p - step * rule.Direction(p, memory.moments[0][i], memory.moments[1][i], rates);
    memory.p[i] = value;
    if (narrow != nullptr) Store(narrow[i - range.begin], value);
  }
}

void Update(const UpdateMemory& memory, const Lamb& rule) {
  if (memory.chunks == 0) return;
  double* const sums = static_cast<double*>(memory.scratch);
  float* const ratios = reinterpret_cast<float*>(sums + 2 * memory.chunks);
  const dim3 chunks(static_cast<unsigned>(memory.chunks));
  LATHE_LAUNCH(LambMoments, chunks, kBlock, 0, memory, rule, sums);
  LATHE_LAUNCH(LambRatios, dim3(static_cast<unsigned>(memory.count)), kBlock, 0, memory, sums,
               ratios);
  DispatchNarrow("LAMB", memory.narrow_type, [&](auto tag) {
    LATHE_LAUNCH((LambStep<decltype(tag)>), chunks, kBlock, 0, memory, rule, ratios);
  });
}

const UpdateKernel<Lamb> table = {Update};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
