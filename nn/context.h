// The context that a forward pass over a packed batch hands from layer to layer, besides the hidden
// states.
#pragma once

#include <string_view>

#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/dropout.h"
#include "lathe/core/ops/rotary/rotary_embedding.h"

namespace lathe::nn {

// Positions by which attention turns queries and keys (core/ops/rotary/rotary_embedding.h).
struct RotaryPositions {
  Tensor table;  // [positions, columns of a head] f32; undefined: nothing is turned
  RotaryPairs pairs = RotaryPairs::kHalves;
  bool turns_values = false;  // values are turned, too
};

struct ForwardContext {
  Tensor input_ids, token_type_ids;  // [T] i32
  PackedSequences sequences;
  // [T] i32: the sample of each token row, as its place in the global batch; 0 for surplus rows
  // behind the last sequence.
  Tensor row_samples;
  Tensor row_positions;    // [T] i32: the token's position in its sequence
  Tensor first_positions;  // [B] i32, zeros: the positions of first tokens
  // The terms of attention's scores that depend on the distance of query and key and that all
  // layers share. A layer may have other tables besides. The tensors here are parameters, or they
  // require no gradient.
  RelativePositions relative;
  RotaryPositions rotary;
  bool training = false;
  uint64_t seed = 0;
  uint32_t step = 0;
  Tensor device_step;     // [1] i32, replaces `step`; undefined on the host
  bool* drops = nullptr;  // set to true if a place has dropout; null: nobody asks

  // Returns the dropout of a named place, for the T rows of all tokens or the B rows of first
  // tokens. Returns no dropout if not training.
  DropoutSpec Dropout(double p, std::string_view site, bool first_tokens = false) const;
};

// Returns the rows of first tokens: [T, H] -> [B, H].
Tensor FirstTokens(const Tensor& hidden_states, const Tensor& cu_seqlens);

}  // namespace lathe::nn
