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
                                    const Tensor& position_ids, int64_t max_seqlen, Device device) {
  const Tensor row_samples = Tensor::Zeros({position_ids.numel()}, DType::kI32);
  const auto cu = cu_seqlens.values<int32_t>(), samples = sample_ids.values<int32_t>();
  int32_t* rows = row_samples.data<int32_t>();
  for (size_t b = 0; b < samples.size(); ++b) std::fill(rows + cu[b], rows + cu[b + 1], samples[b]);
  ForwardContext context;
  context.sequences = {cu_seqlens.To(device), sample_ids.To(device), max_seqlen, cu.back()};
  context.row_positions = position_ids.To(device);
  context.row_samples = row_samples.To(device);
  context.first_positions = Tensor::Zeros({sample_ids.numel()}, DType::kI32, device);
  return context;
}

Tensor FirstTokens(const Tensor& hidden_states, const Tensor& cu_seqlens) {
  return GatherRows(hidden_states, cu_seqlens.Slice(0, cu_seqlens.dim(0) - 1));
}

}  // namespace lathe::nn
