#include "lathe/nn/post_norm_layer.h"

#include <utility>

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/gated/gated_activation.h"
#include "lathe/core/ops/linear_parts/linear_parts.h"

namespace lathe::nn {

SelfAttention::SelfAttention(const PostNormLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size;
  const Init init = Init::Normal(options.initializer_range);
  const auto add = [&](const std::string& name, int64_t out) {
    return Register<Linear>(name, H, out, options.qkv_init.value_or(init), ActivationKind::kNone,
                            options.has_biases);
  };
  if (options.names.qkv.empty()) {
    query_ = add(options.names.query, H);
    key_ = add(options.names.key, H);
    value_ = add(options.names.value, H);
  } else {
    qkv_ = add(options.names.qkv, 3 * H);
  }
  if (options.num_distances > 0) {
    distance_embedding_ =
        RegisterParameter("distance_embedding.weight",
                          {options.num_distances, H / options.num_attention_heads}, init);
  }
}

Tensor SelfAttention::Queries(const Tensor& x, const RotaryPositions& rotary,
                              const Tensor& positions) const {
  Tensor q = qkv_ == nullptr
                 ? query_->Forward(x)
                 : LinearParts(x, qkv_->weight, qkv_->bias, {.end = options_.hidden_size});
  if (!rotary.table.defined()) return q;
  return RotaryEmbedding(std::move(q), rotary.table, positions,
                         {.num_heads = options_.num_attention_heads, .pairs = rotary.pairs});
}

Tensor SelfAttention::KeysAndValues(const Tensor& x, const ForwardContext& context) const {
  // If the layers are separate, values come before keys. The arena holds them in this order, so a
  // GPU computes both in one product (LinearStack).
  const bool values_first = qkv_ == nullptr;
  Tensor kv =
      values_first
          ? LinearStack(x, {value_->weight, key_->weight}, {value_->bias, key_->bias})
          : LinearParts(x, qkv_->weight, qkv_->bias, {.begin = options_.hidden_size, .parts = 2});
  const RotaryPositions& rotary = context.rotary;
  if (!rotary.table.defined()) return kv;
  const int64_t T = x.dim(0), keys = values_first ? T : 0;
  return RotaryEmbedding(std::move(kv), rotary.table, context.row_positions,
                         {.num_heads = options_.num_attention_heads,
                          .pairs = rotary.pairs,
                          .begin = rotary.turns_values ? 0 : keys,
                          .end = rotary.turns_values ? 2 * T : keys + T});
}

Tensor SelfAttention::Stack(const Tensor& x, const ForwardContext& context) const {
  Tensor qkv = LinearParts(x, qkv_->weight, qkv_->bias, {.parts = 3});
  const RotaryPositions& rotary = context.rotary;
  if (!rotary.table.defined()) return qkv;
  return RotaryEmbedding(std::move(qkv), rotary.table, context.row_positions,
                         {.num_heads = options_.num_attention_heads,
                          .pairs = rotary.pairs,
                          .end = (rotary.turns_values ? 3 : 2) * x.dim(0)});
}

Tensor SelfAttention::Forward(const Tensor& hidden_states, const ForwardContext& context,
                              bool first_tokens_only, std::string_view site) const {
  AttentionOptions options;
  options.num_heads = options_.num_attention_heads;
  options.first_query_only = first_tokens_only;
  options.values_first = qkv_ == nullptr;
  options.dropout = context.Dropout(options_.attention_probs_dropout_prob, site);
  options.window = options_.window;
  options.relative = context.relative;
  if (distance_embedding_.defined()) {
    options.relative.keys = Cast(distance_embedding_, hidden_states.dtype());
    if (options_.multiplies_keys) options.relative.queries = options.relative.keys;
  }
  if (qkv_ != nullptr && !first_tokens_only) {
    return PackedSelfAttention(Stack(hidden_states, context), context.sequences, options);
  }
  const Tensor q = first_tokens_only
                       ? Queries(FirstTokens(hidden_states, context.sequences.cu_seqlens),
                                 context.rotary, context.first_positions)
                       : Queries(hidden_states, context.rotary, context.row_positions);
  return PackedAttention(q, KeysAndValues(hidden_states, context), context.sequences, options);
}

PostNormLayer::PostNormLayer(const PostNormLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size, I = options.intermediate_size;
  const Init init = Init::Normal(options.initializer_range);
  const PostNormLayerNames& names = options.names;
  self_ = Register<SelfAttention>(names.self_attention, options);
  const auto add = [&](const std::string& name, int64_t in, int64_t out,
                       ActivationKind activation = ActivationKind::kNone) {
    return Register<Linear>(name, in, out, init, activation, options.has_biases);
  };
  attention_output_ = add(names.attention_output, H, H);
  attention_norm_ = Register<LayerNorm>(names.attention_norm, H, options.layer_norm_eps);
  intermediate_ = add(names.intermediate, H, I, options.hidden_act);
  // The gate is registered after W_1, so that the arena holds it before W_1 (LinearStack).
  if (!names.gate.empty()) gate_ = add(names.gate, H, I);
  output_ = add(names.output, I, H);
  output_norm_ = Register<LayerNorm>(names.output_norm, H, options.layer_norm_eps);
}

Tensor PostNormLayer::Inner(const Tensor& a) const {
  if (gate_ == nullptr) {
    return FeedForward(a, intermediate_->weight, intermediate_->bias, intermediate_->activation(),
                       output_->weight, output_->bias);
  }
  Tensor inner =
      LinearStack(a, {gate_->weight, intermediate_->weight}, {gate_->bias, intermediate_->bias});
  inner = GatedActivation(inner, options_.hidden_act, GateHalves::kRows);
  return output_->Forward(inner);
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
  return output_norm_->Forward(Inner(a), a,
                               context.Dropout(output_p, site + ".output", first_tokens_only));
}

}  // namespace lathe::nn
