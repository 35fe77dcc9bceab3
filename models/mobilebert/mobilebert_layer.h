// The layer of MobileBERT (Sun et al. 2020). It is BERT's layer between two bottlenecks, with
// several feed-forward blocks, and with scales and shifts in place of norms.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/nn/layers.h"

namespace lathe {

struct MobileBertOptions {
  int64_t vocab_size = 0, max_position_embeddings = 0, type_vocab_size = 0, pad_token_id = 0;
  int64_t embedding_size = 0;  // columns of the word table
  bool trigram_input = true;   // the embedding of a token has those of its neighbours beside it
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;  // columns between the layers
  int64_t inner_size = 0;   // columns inside of a layer ("true_hidden_size")
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t num_feedforward_networks = 1;
  bool use_bottleneck = true;
  // These two matter if there are bottlenecks. With use_bottleneck_attention, queries, keys and
  // values come from the input's bottleneck. Else values come from the input. Queries and keys then
  // come from a bottleneck of their own if it is shared, or also from the input.
  bool use_bottleneck_attention = false, key_query_shared_bottleneck = true;
  bool has_layer_norms = false;  // false: a scale and a shift
  ActivationKind hidden_act = ActivationKind::kRelu;
  double hidden_dropout_prob = 0, attention_probs_dropout_prob = 0;
  double layer_norm_eps = 1e-12, initializer_range = 0.02;
};

// A layer norm, or a scale and a shift of each column. Neither parameter has weight decay.
class MobileBertNorm : public Module {
 public:
  MobileBertNorm(int64_t columns, bool is_layer_norm, double eps);
  // Returns norm(dropout(x) + residual) for x [N, C]. The residual may be undefined.
  Tensor Forward(const Tensor& x, const Tensor& residual = {},
                 const DropoutSpec& dropout = {}) const;

 private:
  Tensor weight_, bias_;
  bool is_layer_norm_;
  double eps_;
};

// norm(dropout(dense(x)) + residual), without the residual if it is undefined.
class MobileBertDense : public Module {
 public:
  MobileBertDense(int64_t in, int64_t out, const MobileBertOptions& options, double eps);
  Tensor Forward(const Tensor& x, const Tensor& residual = {},
                 const DropoutSpec& dropout = {}) const;
  // Does the same behind act(inner(x)).
  Tensor Forward(const nn::Linear& inner, const Tensor& x, const Tensor& residual,
                 const DropoutSpec& dropout = {}) const;

 private:
  std::shared_ptr<nn::Linear> dense_;
  std::shared_ptr<MobileBertNorm> norm_;
};

class MobileBertLayer : public Module {
 public:
  explicit MobileBertLayer(const MobileBertOptions& options);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens. `site` selects the
  // dropout masks.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 bool first_tokens_only, const std::string& site) const;

 private:
  struct Attended {
    Tensor result, residual;  // of attention, and what is added behind its output projection
  };
  Attended Attend(const Tensor& hidden_states, const nn::ForwardContext& context,
                  bool first_tokens_only, const std::string& site) const;

  MobileBertOptions options_;
  std::shared_ptr<nn::Linear> query_, key_, value_;
  std::shared_ptr<MobileBertDense> attention_output_;
  // The feed-forward blocks. The last one is the layer's own.
  std::vector<std::shared_ptr<nn::Linear>> intermediate_;
  std::vector<std::shared_ptr<MobileBertDense>> output_;
  std::shared_ptr<MobileBertDense> input_bottleneck_, attention_bottleneck_, output_bottleneck_;
};

}  // namespace lathe
