// The post-norm transformer encoder layer of BERT (Devlin et al. 2018), over packed sequences:
//
//   a = LayerNorm(x + dropout(W_o attention(x)));  y = LayerNorm(a + dropout(W_2 act(W_1 a)))
#pragma once

#include <string>

#include "lathe/nn/layers.h"

namespace lathe::nn {

struct PostNormLayerOptions {
  int64_t hidden_size = 768;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  ActivationKind hidden_act = ActivationKind::kGelu;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
};

// Multi-head self-attention without its output projection.
class SelfAttention : public Module {
 public:
  SelfAttention(const PostNormLayerOptions& options, std::string site);
  // hidden_states: [T, H] -> [T, H], or [B, H] if first_tokens_only: only first tokens have
  // queries.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context,
                 bool first_tokens_only = false) const;

 private:
  PostNormLayerOptions options_;
  std::string site_;
  std::shared_ptr<Linear> query_, key_, value_;
};

class PostNormLayer : public Module {
 public:
  // `site` is the layer's path; it selects the dropout masks.
  PostNormLayer(const PostNormLayerOptions& options, std::string site);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens, exactly as in the
  // full result.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context,
                 bool first_tokens_only = false) const;

 private:
  PostNormLayerOptions options_;
  std::string site_;
  std::shared_ptr<SelfAttention> self_;
  std::shared_ptr<Linear> attention_output_, intermediate_, output_;
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
};

}  // namespace lathe::nn
