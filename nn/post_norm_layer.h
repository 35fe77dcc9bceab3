// The post-norm transformer encoder layer of BERT (Devlin et al. 2018), over packed sequences:
//
//   a = LayerNorm(x + dropout(W_o attention(x)));  y = LayerNorm(a + dropout(W_2 act(W_1 a)))
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lathe/nn/layers.h"

namespace lathe::nn {

// The names of the layer's parts, as paths of their parameters. The defaults are BERT's.
struct PostNormLayerNames {
  std::string self_attention = "attention.self";
  std::string query = "query", key = "key", value = "value";  // below self_attention
  std::string attention_output = "attention.output.dense";
  std::string attention_norm = "attention.output.LayerNorm";
  std::string intermediate = "intermediate.dense", output = "output.dense";
  std::string output_norm = "output.LayerNorm";
};

struct PostNormLayerOptions {
  int64_t hidden_size = 768;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  ActivationKind hidden_act = ActivationKind::kGelu;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  bool drops_attention_output = true, drops_output = true;  // with hidden_dropout_prob
  // The rows of the table distance_embedding below self_attention (Shaw et al. 2018); 0: there is
  // none. ForwardContext::relative says which row belongs to the distance of a query and a key.
  // The score of the two gets the row's product with the query, before the scores are scaled.
  int64_t num_distances = 0;
  bool multiplies_keys = false;  // scores get the row's product with the key, too
  PostNormLayerNames names = {};
};

// Multi-head self-attention without its output projection.
class SelfAttention : public Module {
 public:
  explicit SelfAttention(const PostNormLayerOptions& options);
  // hidden_states: [T, H] -> [T, H], or [B, H] if first_tokens_only: only first tokens have
  // queries. `site` selects the dropout masks.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context, bool first_tokens_only,
                 std::string_view site) const;

 private:
  PostNormLayerOptions options_;
  std::shared_ptr<Linear> query_, key_, value_;
  Tensor distance_embedding_;  // [num_distances, H / heads]; undefined if there is none
};

class PostNormLayer : public Module {
 public:
  explicit PostNormLayer(const PostNormLayerOptions& options);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens, exactly as in the
  // full result. `site` selects the dropout masks. It is the layer's path, or tells the uses of a
  // layer apart that is used several times.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context, bool first_tokens_only,
                 const std::string& site) const;

 private:
  PostNormLayerOptions options_;
  std::shared_ptr<SelfAttention> self_;
  std::shared_ptr<Linear> attention_output_, intermediate_, output_;
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
};

}  // namespace lathe::nn
