// What a forward pass over a packed batch carries from layer to layer, besides the hidden states.
#pragma once

#include <string_view>

#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/dropout.h"

namespace lathe::nn {

struct ForwardContext {
  Tensor input_ids, token_type_ids;  // [T] i32
  PackedSequences sequences;
  Tensor row_samples;    // [T] i32: the sample of each token row, by its place in the global batch;
                         // 0 for surplus rows beyond the last sequence
  Tensor row_positions;  // [T] i32: the token's place in its sequence
  Tensor first_positions;  // [B] i32 zeros: those of first tokens
  bool training = false;
  uint64_t seed = 0;
  uint32_t step = 0;
  Tensor device_step;  // [1] i32, instead of `step`; undefined on the host

  // Dropout at a named place, on the T rows of all tokens or on the B rows of first tokens. None
  // when not training.
  DropoutSpec Dropout(double p, std::string_view site, bool first_tokens = false) const;
};

// Rows of the first tokens: [T, H] -> [B, H].
Tensor FirstTokens(const Tensor& hidden_states, const Tensor& cu_seqlens);

}  // namespace lathe::nn
