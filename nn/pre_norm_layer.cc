#include "lathe/nn/pre_norm_layer.h"

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
  // Returns residual + dropout(x).
  const auto add = [&](const Tensor& residual, const Tensor& x, double rate, const char* place) {
    const DropoutSpec dropout = context.Dropout(rate, site + place, first_tokens_only);
    return Add(residual, lathe::Dropout(Cast(x, residual.dtype()), dropout));
  };
  const Tensor residual =
      first_tokens_only ? FirstTokens(hidden_states, context.sequences.cu_seqlens) : hidden_states;
  // Intermediate results have no names here, so that each is freed as soon as the next op is done.
  const Tensor a = add(residual,
                       attention_output_->Forward(self_->Forward(
                           Cast(attention_norm_->Forward(hidden_states), compute_dtype()), context,
                           first_tokens_only, site + ".attention.self")),
                       attention_p, ".attention.output");
  return add(
      a,
      FeedForward(Cast(output_norm_->Forward(a), compute_dtype()), intermediate_->weight,
                  intermediate_->bias, intermediate_->activation(), output_->weight, output_->bias),
      output_p, ".output");
}

}  // namespace lathe::nn
