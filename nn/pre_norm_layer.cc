#include "lathe/nn/pre_norm_layer.h"

#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe::nn {

PreNormLayer::PreNormLayer(const PreNormLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size, I = options.intermediate_size;
  const Init init = Init::Normal(options.initializer_range);
  const PreNormLayerNames& names = options.names;
  Check(names.gate.empty() && options.has_biases, "pre_norm_layer",
        "there is no layer of this kind with a gate, or without biases");
  attention_norm_ = Register<LayerNorm>(names.attention_norm, H, options.layer_norm_eps);
  self_ = Register<SelfAttention>(names.self_attention, options);
  attention_output_ = Register<Linear>(names.attention_output, H, H, init);
  output_norm_ = Register<LayerNorm>(names.output_norm, H, options.layer_norm_eps);
  intermediate_ = Register<Linear>(names.intermediate, H, I, init, options.hidden_act);
  output_ = Register<Linear>(names.output, I, H, init);
}

Tensor PreNormLayer::Forward(const Tensor& hidden_states, const ForwardContext& context,
                             bool first_tokens_only, const std::string& site) const {
  const double p = options_.hidden_dropout_prob;
  const double attention_p = options_.drops_attention_output ? p : 0;
  const double output_p = options_.drops_output ? p : 0;
  const auto normed = [&](const LayerNorm& norm, const Tensor& x) {
    return Cast(norm.Forward(x), compute_dtype());
  };
  // Returns residual + dropout(x).
  const auto add = [&](const Tensor& residual, Tensor x, double rate, const char* place) {
    x = Cast(x, residual.dtype());
    x = lathe::Dropout(x, context.Dropout(rate, site + place, first_tokens_only));
    return Add(residual, x);
  };
  const Tensor residual =
      first_tokens_only ? FirstTokens(hidden_states, context.sequences.cu_seqlens) : hidden_states;
  // Each intermediate result replaces the one before it, which is freed unless it is kept for the
  // backward pass.
  Tensor x = normed(*attention_norm_, hidden_states);
  x = self_->Forward(x, context, first_tokens_only, site + ".attention.self");
  x = attention_output_->Forward(x);
  const Tensor a = add(residual, std::move(x), attention_p, ".attention.output");
  x = normed(*output_norm_, a);
  x = FeedForward(x, intermediate_->weight, intermediate_->bias, intermediate_->activation(),
                  output_->weight, output_->bias);
  return add(a, std::move(x), output_p, ".output");
}

}  // namespace lathe::nn
