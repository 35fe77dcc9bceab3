#include "lathe/models/rows.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/shape.h"

namespace lathe {

int64_t NumDeviceRows(int64_t tokens) {
  constexpr int64_t kTile = 128;
  return (tokens + kTile - 1) / kTile * kTile;
}

int64_t NumActivationRows(int64_t tokens, DType compute_dtype, Device device) {
  if (!device.is_cpu()) return NumDeviceRows(tokens);
  return FullSpeedRows(tokens, compute_dtype);
}

Tensor WithoutSurplusRows(const Tensor& hidden_states, int64_t rows) {
  const Tensor x = hidden_states.dim(0) == rows ? hidden_states : SliceRows(hidden_states, 0, rows);
  return Cast(x, DType::kF32);
}

void CheckSequencesStartAtZero(const Batch& batch, const char* model) {
  const int32_t* cu_seqlens = batch.cu_seqlens.data<int32_t>();
  const int32_t* positions = batch.position_ids.data<int32_t>();
  for (int64_t b = 0; b < batch.size(); ++b) {
    if (const int32_t first = positions[cu_seqlens[b]]; first != 0) {
      throw InvalidArgument(absl::StrCat("[", model, "] sequence ", b, " starts at position ",
                                         first, ", but the classifier reads position 0"),
                            "pad on the right, not on the left");
    }
  }
}

void CheckPositions(const Batch& batch, const char* model, int64_t max_position_embeddings) {
  Check(batch.max_seqlen <= max_position_embeddings, model, "a sequence has ", batch.max_seqlen,
        " tokens but the model's max_position_embeddings is ", max_position_embeddings);
  const auto positions = batch.position_ids.values<int32_t>();
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  Check(last < max_position_embeddings, model, "a sequence reaches position ", last,
        " but the model's max_position_embeddings is ", max_position_embeddings);
}

void CheckNoGaps(const Batch& batch, const char* model, const char* parts) {
  const int32_t* cu_seqlens = batch.cu_seqlens.data<int32_t>();
  const int32_t* positions = batch.position_ids.data<int32_t>();
  for (int64_t b = 0; b < batch.size(); ++b) {
    const int32_t first = cu_seqlens[b], last = cu_seqlens[b + 1] - 1;
    if (positions[last] - positions[first] == last - first) continue;
    throw InvalidArgument(
        absl::StrCat("[", model, "] sequence ", b, " has ", last - first + 1,
                     " tokens at positions ", positions[first], " to ", positions[last],
                     ", but a model with ", parts, " takes no padding between tokens"),
        "pad on the right only");
  }
}

}  // namespace lathe
