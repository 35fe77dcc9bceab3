// ModernBERT's transformer layer (Warner et al. 2024), over packed sequences:
//
//   a = x + dropout(W_o attention(norm(x)));  y = a + W_2 dropout(act(u) * g)
//
// where u and g are the halves of W_i norm(a). Queries, keys and values come from one weight, and
// attention turns queries and keys by their positions. The hidden states x, a and y are float32,
// whatever type the model computes in (nn/pre_norm_layer.h says why).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/nn/post_norm_layer.h"

namespace lathe {

struct ModernBertLayerOptions {
  int64_t hidden_size = 768, num_attention_heads = 12, intermediate_size = 1152;
  ActivationKind hidden_activation = ActivationKind::kGelu;
  double norm_eps = 1e-5;
  bool norm_bias = false, attention_bias = false, mlp_bias = false;
  double attention_dropout = 0;  // of the probabilities and of the output projection
  double mlp_dropout = 0;
  Init in = {}, out = {};   // of the weights that read hidden states, and of those that make them
  bool norms_input = true;  // false: the first layer, whose input has a norm already
  int64_t window = -1;      // a query sees keys at this distance at most; -1: all keys
};

class ModernBertLayer : public Module {
 public:
  explicit ModernBertLayer(const ModernBertLayerOptions& options);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens, exactly as in the
  // full result. The context has the table of rotary positions. `site` selects the dropout masks.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 bool first_tokens_only, const std::string& site) const;

 private:
  ModernBertLayerOptions options_;
  std::shared_ptr<nn::LayerNorm> attention_norm_;  // null if the input has a norm already
  std::shared_ptr<nn::LayerNorm> mlp_norm_;
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Linear> attention_output_, gated_, output_;
};

}  // namespace lathe
