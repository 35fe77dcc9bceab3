#include "lathe/models/eurobert/eurobert_layer.h"

#include <utility>

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/gated/gated_activation.h"
#include "lathe/core/ops/heads/repeat_heads.h"

namespace lathe {

EuroBertLayer::EuroBertLayer(const EuroBertLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size, I = options.intermediate_size, d = options.head_dim;
  const int64_t queries = options.num_attention_heads * d, keys = options.num_key_value_heads * d;
  const auto linear = [&](const char* name, int64_t in, int64_t out, bool has_bias) {
    return Register<nn::Linear>(name, in, out, Init::Normal(options.initializer_range),
                                ActivationKind::kNone, has_bias);
  };
  input_norm_ = Register<nn::RmsNorm>("input_layernorm", H, options.rms_norm_eps);
  query_ = linear("self_attn.q_proj", H, queries, options.attention_bias);
  key_ = linear("self_attn.k_proj", H, keys, options.attention_bias);
  value_ = linear("self_attn.v_proj", H, keys, options.attention_bias);
  attention_output_ = linear("self_attn.o_proj", queries, H, options.attention_bias);
  output_norm_ = Register<nn::RmsNorm>("post_attention_layernorm", H, options.rms_norm_eps);
  // In this order the arena holds the gate before `up`, as LinearStack wants them.
  up_ = linear("mlp.up_proj", H, I, options.mlp_bias);
  gate_ = linear("mlp.gate_proj", H, I, options.mlp_bias);
  down_ = linear("mlp.down_proj", I, H, options.mlp_bias);
}

Tensor EuroBertLayer::Attend(const Tensor& normed, const nn::ForwardContext& context,
                             bool first_tokens_only, const std::string& site) const {
  const int64_t T = normed.dim(0), heads = options_.num_key_value_heads;
  const Tensor& table = context.rotary.table;
  const Tensor q = RotaryEmbedding(
      query_->Forward(first_tokens_only ? nn::FirstTokens(normed, context.sequences.cu_seqlens)
                                        : normed),
      table, first_tokens_only ? context.first_positions : context.row_positions,
      {.num_heads = options_.num_attention_heads});
  // Values lie above keys, as in nn::SelfAttention.
  Tensor kv = LinearStack(normed, {value_->weight, key_->weight}, {value_->bias, key_->bias});
  kv = RotaryEmbedding(std::move(kv), table, context.row_positions,
                       {.num_heads = heads, .begin = T, .end = 2 * T});
  kv = RepeatHeads(kv, heads, options_.num_attention_heads / heads);
  AttentionOptions attention;
  attention.num_heads = options_.num_attention_heads;
  attention.first_query_only = first_tokens_only;
  attention.values_first = true;
  attention.dropout = context.Dropout(options_.attention_dropout, site + ".self_attn");
  return PackedAttention(q, kv, context.sequences, attention);
}

Tensor EuroBertLayer::Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                              bool first_tokens_only, const std::string& site) const {
  const auto norm = [&](const nn::RmsNorm& rms_norm, const Tensor& states) {
    return Cast(rms_norm.Forward(states), compute_dtype());
  };
  // Returns states + change, in float32.
  const auto add = [](const Tensor& states, const Tensor& change) {
    return Add(states, Cast(change, DType::kF32));
  };
  const Tensor residual = first_tokens_only
                              ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                              : hidden_states;
  // A reused name frees each result as soon as the next one is there.
  Tensor x = norm(*input_norm_, hidden_states);
  x = Attend(x, context, first_tokens_only, site);
  const Tensor a = add(residual, attention_output_->Forward(x));
  x = norm(*output_norm_, a);
  x = LinearStack(x, {gate_->weight, up_->weight}, {gate_->bias, up_->bias});
  x = GatedActivation(x, options_.hidden_act, GateHalves::kRows);
  return add(a, down_->Forward(x));
}

}  // namespace lathe
