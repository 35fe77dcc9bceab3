#include "lathe/nn/post_norm_layer.h"

#include "lathe/core/ops/cast.h"

namespace lathe::nn {

SelfAttention::SelfAttention(const PostNormLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size;
  const Init init = Init::Normal(options.initializer_range);
  query_ = Register<Linear>(options.names.query, H, H, init);
  key_ = Register<Linear>(options.names.key, H, H, init);
  value_ = Register<Linear>(options.names.value, H, H, init);
  if (options.num_distances > 0) {
    distance_embedding_ =
        RegisterParameter("distance_embedding.weight",
                          {options.num_distances, H / options.num_attention_heads}, init);
  }
}

Tensor SelfAttention::Forward(const Tensor& hidden_states, const ForwardContext& context,
                              bool first_tokens_only, std::string_view site) const {
  const Tensor q = query_->Forward(
      first_tokens_only ? FirstTokens(hidden_states, context.sequences.cu_seqlens) : hidden_states);
  // Values before keys: the order in which the arena holds them, in which a GPU computes both in
  // one product (LinearStack).
  const Tensor kv =
      LinearStack(hidden_states, {value_->weight, key_->weight}, {value_->bias, key_->bias});
  AttentionOptions options;
  options.num_heads = options_.num_attention_heads;
  options.first_query_only = first_tokens_only;
  options.values_first = true;
  options.dropout = context.Dropout(options_.attention_probs_dropout_prob, site);
  options.relative = context.relative;
  if (distance_embedding_.defined()) {
    options.relative.keys = Cast(distance_embedding_, q.dtype());
    if (options_.multiplies_keys) options.relative.queries = options.relative.keys;
  }
  return PackedAttention(q, kv, context.sequences, options);
}

PostNormLayer::PostNormLayer(const PostNormLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size, I = options.intermediate_size;
  const Init init = Init::Normal(options.initializer_range);
  const PostNormLayerNames& names = options.names;
  self_ = Register<SelfAttention>(names.self_attention, options);
  attention_output_ = Register<Linear>(names.attention_output, H, H, init);
  attention_norm_ = Register<LayerNorm>(names.attention_norm, H, options.layer_norm_eps);
  intermediate_ = Register<Linear>(names.intermediate, H, I, init, options.hidden_act);
  output_ = Register<Linear>(names.output, I, H, init);
  output_norm_ = Register<LayerNorm>(names.output_norm, H, options.layer_norm_eps);
}

Tensor PostNormLayer::Forward(const Tensor& hidden_states, const ForwardContext& context,
                              bool first_tokens_only, const std::string& site) const {
  const double p = options_.hidden_dropout_prob;
  const double attention_p = options_.drops_attention_output ? p : 0;
  const double output_p = options_.drops_output ? p : 0;
  const Tensor residual =
      first_tokens_only ? FirstTokens(hidden_states, context.sequences.cu_seqlens) : hidden_states;
  // Intermediate results have no names here, so that each is freed as soon as the next op is done.
  const Tensor a = attention_norm_->Forward(
      attention_output_->Forward(
          self_->Forward(hidden_states, context, first_tokens_only, site + ".attention.self")),
      residual, context.Dropout(attention_p, site + ".attention.output", first_tokens_only));
  return output_norm_->Forward(
      FeedForward(a, intermediate_->weight, intermediate_->bias, intermediate_->activation(),
                  output_->weight, output_->bias),
      a, context.Dropout(output_p, site + ".output", first_tokens_only));
}

}  // namespace lathe::nn
