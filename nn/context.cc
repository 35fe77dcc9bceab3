#include "lathe/nn/context.h"

#include "lathe/core/ops/shape.h"

namespace lathe::nn {

DropoutSpec ForwardContext::Dropout(double p, std::string_view site, bool first_tokens) const {
  if (!training || p == 0) return {};
  DropoutSpec spec;
  spec.p = p;
  spec.key = {seed, step, static_cast<uint32_t>(HashName(site))};
  spec.row_samples = first_tokens ? sequences.sample_ids : row_samples;
  spec.row_positions = first_tokens ? first_positions : row_positions;
  return spec;
}

ForwardContext ForwardContext::Make(const Tensor& cu_seqlens, const Tensor& sample_ids,
                                    const Tensor& position_ids, int64_t max_seqlen) {
  ForwardContext context;
  context.sequences = {cu_seqlens, sample_ids, max_seqlen};
  context.row_positions = position_ids;
  context.row_samples = Tensor::Zeros({position_ids.numel()}, DType::kI32);
  context.first_positions = Tensor::Zeros({sample_ids.numel()}, DType::kI32);
  const int32_t* cu = cu_seqlens.data<int32_t>();
  const int32_t* samples = sample_ids.data<int32_t>();
  int32_t* rows = context.row_samples.data<int32_t>();
  for (int64_t b = 0; b < sample_ids.numel(); ++b)
    std::fill(rows + cu[b], rows + cu[b + 1], samples[b]);
  return context;
}

Tensor FirstTokens(const Tensor& hidden_states, const Tensor& cu_seqlens) {
  return GatherRows(hidden_states, cu_seqlens.Slice(0, cu_seqlens.dim(0) - 1));
}

}  // namespace lathe::nn
