// The pre-norm transformer encoder layer (Xiong et al. 2020), over packed sequences:
//
//   a = x + dropout(W_o attention(LayerNorm(x)));  y = a + dropout(W_2 act(W_1 LayerNorm(a)))
//
// The hidden states x, a and y are float32, whatever type the model computes in. No norm bounds
// their sum, so a narrow type would lose more with each layer. PyTorch's autocast keeps them in
// float32, too.
#pragma once

#include <memory>
#include <string>

#include "lathe/nn/post_norm_layer.h"

namespace lathe::nn {

// The layer has the parts of a PostNormLayer, so it has the same options. Here attention_norm is
// the norm before attention, and output_norm is the norm before the feed-forward block. There is no
// gate, and linear layers have biases.
using PreNormLayerOptions = PostNormLayerOptions;
using PreNormLayerNames = PostNormLayerNames;

class PreNormLayer : public Module {
 public:
  explicit PreNormLayer(const PreNormLayerOptions& options);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens, exactly as in the
  // full result. `site` selects the dropout masks. It is the layer's path, or tells the uses of a
  // layer apart that is used several times.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context, bool first_tokens_only,
                 const std::string& site) const;

 private:
  PreNormLayerOptions options_;
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
  std::shared_ptr<SelfAttention> self_;
  std::shared_ptr<Linear> attention_output_, intermediate_, output_;
};

}  // namespace lathe::nn
