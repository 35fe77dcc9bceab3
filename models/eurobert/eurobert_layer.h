// EuroBERT's transformer layer (Boizard et al. 2025), over packed sequences:
//
//   a = x + W_o attention(norm(x));  y = a + W_d (act(W_g norm(a)) * W_u norm(a))
//
// The norms divide by the root mean square. Attention turns queries and keys by their positions,
// and several heads of queries may share keys and values. The hidden states x, a and y are float32,
// whatever type the model computes in (nn/pre_norm_layer.h says why).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/nn/layers.h"

namespace lathe {

struct EuroBertLayerOptions {
  int64_t hidden_size = 768, intermediate_size = 3072;
  // Heads of queries, and of keys and values. The first is a multiple of the second.
  int64_t num_attention_heads = 12, num_key_value_heads = 12;
  int64_t head_dim = 64;
  ActivationKind hidden_act = ActivationKind::kSilu;
  double rms_norm_eps = 1e-5;
  bool attention_bias = false, mlp_bias = false;
  double attention_dropout = 0;  // of the probabilities
  double initializer_range = 0.02;
};

class EuroBertLayer : public Module {
 public:
  explicit EuroBertLayer(const EuroBertLayerOptions& options);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens, exactly as in the
  // full result. The context has the table of rotary positions. `site` selects the dropout masks.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 bool first_tokens_only, const std::string& site) const;

 private:
  // Returns the result of attention for normed hidden states, [T, H]: a row for each query.
  Tensor Attend(const Tensor& normed, const nn::ForwardContext& context, bool first_tokens_only,
                const std::string& site) const;

  EuroBertLayerOptions options_;
  std::shared_ptr<nn::RmsNorm> input_norm_, output_norm_;
  std::shared_ptr<nn::Linear> query_, key_, value_, attention_output_;
  std::shared_ptr<nn::Linear> up_, gate_, down_;
};

}  // namespace lathe
