// Computes, on the device, the data about a packed batch that a library's attention needs.
#pragma once

#include <cstdint>

namespace lathe::cuda {

struct AttentionOffsets {
  const int32_t* cu_seqlens = nullptr;  // [sequences + 1]
  const int32_t* sample_ids = nullptr;  // [sequences]; null without dropout
  const int32_t* device_step = nullptr;
  int32_t sequences = 0;
  int32_t batch = 0;  // at least `sequences`; the rest are empty
  int32_t max_seqlen = 0;
  int64_t rows = 0, heads = 0, width = 0;  // rows * width fits in int32
  uint32_t key0 = 0, key1 = 0, step = 0;   // of the dropout
  // The results, see AttentionOperands. Invalid cu_seqlens still give offsets and lengths that stay
  // within `rows`.
  int32_t* lengths = nullptr;
  int32_t* row_offsets = nullptr;
  int32_t* lse_offsets = nullptr;
  int64_t* seed = nullptr;  // from (key0, key1, step, sample_ids[0]); null without dropout
  int64_t* offset = nullptr;
};
void FillAttentionOffsets(const AttentionOffsets& offsets);

}  // namespace lathe::cuda
