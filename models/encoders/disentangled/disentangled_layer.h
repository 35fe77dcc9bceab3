// DisentangledLayer: the post-norm layer of DeBERTa (He et al. 2020) over packed sequences.
//
// Its attention adds two terms to the score of query i and key j. Both read a table of distances
// that all layers share, with a row for i - j:
//
//   (q_i . k_j + q_i . key(row) + k_j . query(row)) / sqrt(d (1 + number of terms))
//
//   DisentangledLayer layer(options);
//   Tensor y = layer.Forward(x, context, distances, /*first_tokens_only=*/false,
//   "encoder.layer.0");
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/nn/layers.h"
#include "lathe/nn/post_norm_layer.h"

namespace lathe {

struct DisentangledLayerOptions {
  nn::PostNormLayerOptions layer;
  bool content_to_position = false, position_to_content = false;  // the terms "c2p" and "p2c"
  bool has_distances = false;       // false: neither term is added, but both count in the scale
  bool shares_projections = false;  // distances have the queries' and keys' projections
  bool fused_projections = false;   // the first DeBERTa's parameters: in_proj, q_bias and v_bias
  // Scores of all heads are mixed before the softmax, and probabilities behind it (Shazeer et al.
  // 2020). This takes as many times the memory of attention as there are heads, and a GPU takes at
  // most 256 columns.
  bool talking_heads = false;
};

// The distances that occur in a batch. All layers read the same ones.
struct Distances {
  Tensor table;                // [S, H] float32: the parameter; undefined if there are none
  int64_t begin = 0, end = 0;  // the rows that occur, R = end - begin
  Tensor rows;                 // RelativePositions::rows, counted from `begin`
  Tensor samples, places;      // [R] i32: zeros and the rows' numbers; they key dropout
  const nn::LayerNorm* norm = nullptr;  // of the rows; null for none
};

class DisentangledAttention : public Module {
 public:
  explicit DisentangledAttention(const DisentangledLayerOptions& options);
  // hidden_states: [T, H] -> [T, H], or [B, H] if first_tokens_only.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 const Distances& distances, bool first_tokens_only, const std::string& site) const;

 private:
  struct Weights {
    Tensor query, key, value, query_bias, key_bias, value_bias;
  };
  Weights WeightsOf() const;
  // Attention, with mixed heads if they talk. q: [T, H] or [B, H], kv: [2 T, H].
  Tensor Attend(const Tensor& q, const Tensor& kv, const nn::ForwardContext& context,
                AttentionOptions options) const;

  DisentangledLayerOptions options_;
  std::shared_ptr<nn::Linear> query_, key_, value_;  // null with in_proj
  Tensor in_proj_, q_bias_, v_bias_;                 // undefined without in_proj
  std::shared_ptr<nn::Linear> distance_key_,
      distance_query_;                     // null unless their terms have projections of their own
  Tensor mix_scores_, mix_probabilities_;  // [heads, heads]; undefined unless heads talk
};

class DisentangledLayer : public Module {
 public:
  explicit DisentangledLayer(const DisentangledLayerOptions& options);
  bool has_distances() const { return has_distances_; }
  // hidden_states: [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens.
  // `site` selects the dropout masks.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 const Distances& distances, bool first_tokens_only, const std::string& site) const;

 private:
  double dropout_;
  bool has_distances_;
  std::shared_ptr<DisentangledAttention> self_;
  std::shared_ptr<nn::Linear> attention_output_, intermediate_, output_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, output_norm_;
};

}  // namespace lathe
