#include "lathe/core/cuda/attention/attention_offsets.h"
#include "lathe/core/cuda/launch.h"

namespace lathe::cuda {
namespace {

__device__ int64_t Clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014). Any change of x changes about half of
// the result's bits.
__device__ uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__global__ void OffsetsKernel(AttentionOffsets o) {
  for (int64_t b = GlobalThread(); b <= o.batch; b += NumThreads()) {
    const int64_t row = Clamp(o.cu_seqlens[b < o.sequences ? b : o.sequences], 0, o.rows);
    o.row_offsets[b] = static_cast<int32_t>(row * o.width);
    o.lse_offsets[b] = static_cast<int32_t>(row * o.heads);
    if (b == o.batch) continue;
    const int64_t length = b < o.sequences ? o.cu_seqlens[b + 1] - row : 0;
    const int64_t most = o.max_seqlen < o.rows - row ? o.max_seqlen : o.rows - row;
    o.lengths[b] = static_cast<int32_t>(Clamp(length, 0, most));
  }
  if (GlobalThread() == 0 && o.seed != nullptr) {
    const auto step = static_cast<uint32_t>(o.device_step != nullptr ? *o.device_step : o.step);
    const uint64_t key = (uint64_t{o.key1} << 32) + o.key0;
    const uint64_t draw =
        (uint64_t{static_cast<uint32_t>(o.sample_ids[0])} << 32) + step + 0x9E3779B97F4A7C15ull;
    *o.seed = static_cast<int64_t>(Mix(key + Mix(draw)));
    *o.offset = 0;
  }
}

}  // namespace

void FillAttentionOffsets(const AttentionOffsets& offsets) {
  LATHE_LAUNCH(OffsetsKernel, GridFor(offsets.batch + 1), kBlock, 0, offsets);
}

}  // namespace lathe::cuda
