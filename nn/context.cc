#include "lathe/nn/context.h"

#include "lathe/core/ops/shape.h"

namespace lathe::nn {

DropoutSpec ForwardContext::Dropout(double p, std::string_view site, bool first_tokens) const {
  if (!training || p == 0) return {};
  if (drops != nullptr) *drops = true;
  DropoutSpec spec;
  spec.p = p;
  spec.key = {seed, step, static_cast<uint32_t>(HashName(site))};
  spec.row_samples = first_tokens ? sequences.sample_ids : row_samples;
  spec.row_positions = first_tokens ? first_positions : row_positions;
  spec.device_step = device_step;
  return spec;
}

Tensor FirstTokens(const Tensor& hidden_states, const Tensor& cu_seqlens) {
  return GatherRows(hidden_states, cu_seqlens.Slice(0, cu_seqlens.dim(0) - 1));
}

}  // namespace lathe::nn
