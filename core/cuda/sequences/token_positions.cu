// Positions without padding tokens. core/kernels/token_positions_kernels.h describes the kernel.
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/rows.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/token_positions_kernels.h"

namespace lathe::cuda {
namespace {

// A warp takes a sequence, 32 tokens at a time. The rows beyond the last sequence are a sequence
// more, in which no token counts as padding.
__global__ void Kernel(int32_t* y, TokenPositionsArgs args) {
  constexpr unsigned kAll = 0xffffffff;
  const int lane = WarpPerRow::Rank();
  for (int64_t b = WarpPerRow::First(); b <= args.batch; b += WarpPerRow::Count()) {
    const int64_t begin = args.cu_seqlens[b];
    const int64_t end = b < args.batch ? args.cu_seqlens[b + 1] : args.rows;
    int padding_tokens = 0;  // before the 32 tokens
    for (int64_t first = begin; first < end; first += 32) {
      const int64_t t = first + lane;
      const bool is_padding = b < args.batch && t < end && args.ids[t] == args.padding_id;
      const unsigned votes = __ballot_sync(kAll, is_padding);
      const int before = padding_tokens + __popc(votes & ((1u << lane) - 1));
      if (t < end) y[t] = args.padding_id + (is_padding ? 0 : 1 + args.positions[t] - before);
      padding_tokens += __popc(votes);
    }
  }
}

void Positions(int32_t* y, const TokenPositionsArgs& args) {
  if (args.rows == 0) return;
  LATHE_LAUNCH(Kernel, GridForRows<WarpPerRow>(args.batch + 1), kBlock, 0, y, args);
}

const TokenPositionsKernels table = {Positions};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
