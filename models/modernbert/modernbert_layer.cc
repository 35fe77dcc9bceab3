#include "lathe/models/modernbert/modernbert_layer.h"

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/gated/gated_activation.h"

namespace lathe {
namespace {

// Returns dropout(x). The host has it for float32 only.
Tensor DropOut(const Tensor& x, const DropoutSpec& dropout) {
  if (dropout.p == 0) return x;
  return Cast(Dropout(Cast(x, DType::kF32), dropout), x.dtype());
}

// Returns x + dropout(change), in float32.
Tensor Sum(const Tensor& x, const Tensor& change, const DropoutSpec& dropout = {}) {
  return Add(x, Dropout(Cast(change, DType::kF32), dropout));
}

}  // namespace

ModernBertLayer::ModernBertLayer(const ModernBertLayerOptions& options) : options_(options) {
  const int64_t H = options.hidden_size, I = options.intermediate_size;
  const auto norm = [&](const char* name) {
    return Register<nn::LayerNorm>(name, H, options.norm_eps, options.norm_bias);
  };
  const auto linear = [&](const char* name, int64_t in, int64_t out, Init init, bool has_bias) {
    return Register<nn::Linear>(name, in, out, init, ActivationKind::kNone, has_bias);
  };
  if (options.norms_input) attention_norm_ = norm("attn_norm");
  nn::PostNormLayerOptions attention = {.hidden_size = H,
                                        .num_attention_heads = options.num_attention_heads,
                                        .attention_probs_dropout_prob = options.attention_dropout,
                                        .has_biases = options.attention_bias,
                                        .window = options.window,
                                        .qkv_init = options.in};
  attention.names.qkv = "Wqkv";
  attention_ = Register<nn::SelfAttention>("attn", attention);
  attention_output_ = linear("attn.Wo", H, H, options.out, options.attention_bias);
  mlp_norm_ = norm("mlp_norm");
  gated_ = linear("mlp.Wi", H, 2 * I, options.in, options.mlp_bias);
  output_ = linear("mlp.Wo", I, H, options.out, options.mlp_bias);
}

Tensor ModernBertLayer::Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                                bool first_tokens_only, const std::string& site) const {
  const auto drops = [&](double p, const char* place) {
    return context.Dropout(p, site + place, first_tokens_only);
  };
  const auto narrow = [&](const Tensor& states) { return Cast(states, compute_dtype()); };
  const Tensor residual = first_tokens_only
                              ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                              : hidden_states;
  // A reused name frees each result as soon as the next one is there.
  Tensor x =
      narrow(attention_norm_ == nullptr ? hidden_states : attention_norm_->Forward(hidden_states));
  x = attention_->Forward(x, context, first_tokens_only, site + ".attn");
  x = attention_output_->Forward(x);
  const Tensor a = Sum(residual, x, drops(options_.attention_dropout, ".attn.Wo"));
  x = narrow(mlp_norm_->Forward(a));
  x = gated_->Forward(x);
  x = GatedActivation(x, options_.hidden_activation, GateHalves::kColumns);
  x = DropOut(x, drops(options_.mlp_dropout, ".mlp"));
  return Sum(a, output_->Forward(x));
}

}  // namespace lathe
