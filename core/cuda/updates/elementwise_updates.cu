// The elementwise rules of core/kernels/update_rules.h as kernels.
#include "lathe/core/cuda/chunks.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/update_kernels.h"

namespace lathe::cuda {
namespace {

using update_rules::kMaxMoments;

template <typename Rule, typename Narrow>
__global__ void UpdateElements(UpdateMemory memory, Rule rule) {
  const float scale = memory.clip == nullptr ? 1.0f : *memory.clip;
  if (!IsFinite(scale)) return;
  const Chunk chunk = FindChunk(memory.ranges, memory.count, blockIdx.x);
  const DeviceRange range = memory.ranges[chunk.range];
  const DeviceRates rates = memory.rates[chunk.range];
  float* const p = memory.p + chunk.begin;
  const float* const g = memory.g + chunk.begin;
  Narrow* narrow = range.narrow == nullptr
                       ? nullptr
                       : static_cast<Narrow*>(range.narrow) + (chunk.begin - range.begin);
  float* moments[kMaxMoments];
  bool aligned = AlignedTo(16, p) && AlignedTo(16, g) && AlignedTo(8, narrow);
  for (int k = 0; k < kMaxMoments; ++k) {
    moments[k] = memory.moments[k] == nullptr ? nullptr : memory.moments[k] + chunk.begin;
    aligned = aligned && AlignedTo(16, moments[k]);
  }
  ForChunk(chunk.n, aligned, [&](int64_t i, auto width) {
    constexpr int N = decltype(width)::value;
    const auto grads = LoadPack<N>(g + i);
    auto values = LoadPack<N>(p + i);
    Pack<float, N> kept[kMaxMoments] = {};
    for (int m = 0; m < kMaxMoments; ++m) {
      if (moments[m] != nullptr) kept[m] = LoadPack<N>(moments[m] + i);
    }
    Pack<Narrow, N> rounded;
    for (int k = 0; k < N; ++k) {
      float of_element[kMaxMoments];
      for (int m = 0; m < kMaxMoments; ++m) of_element[m] = kept[m].v[k];
      rule(values.v[k], of_element, grads.v[k] * scale, rates);
      for (int m = 0; m < kMaxMoments; ++m) kept[m].v[k] = of_element[m];
      Store(rounded.v[k], values.v[k]);
    }
    StorePack(p + i, values);
    for (int m = 0; m < kMaxMoments; ++m) {
      if (moments[m] != nullptr) StorePack(moments[m] + i, kept[m]);
    }
    if (narrow != nullptr) StorePack(narrow + i, rounded);
  });
}

template <typename Rule>
void Update(const UpdateMemory& memory, const Rule& rule) {
  if (memory.chunks == 0) return;
  DispatchNarrow("optimizer", memory.narrow_type, [&](auto tag) {
    LATHE_LAUNCH((UpdateElements<Rule, decltype(tag)>), dim3(static_cast<unsigned>(memory.chunks)),
                 kBlock, 0, memory, rule);
  });
}

template <typename Rule>
const UpdateKernel<Rule> table = {Update<Rule>};

template <typename... Rules>
bool Register(update_rules::List<Rules...>) {
  return (RegisterDeviceKernels(table<Rules>) && ...);
}
[[maybe_unused]] const bool registered = Register(update_rules::ElementwiseRules{});

}  // namespace
}  // namespace lathe::cuda
