#include "lathe/models/mobilebert/mobilebert_layer.h"

#include <absl/strings/str_cat.h>

#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/layer_norm.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/scale_shift/scale_shift.h"
#include "lathe/core/ops/shape.h"

namespace lathe {

MobileBertNorm::MobileBertNorm(int64_t columns, bool is_layer_norm, double eps)
    : weight_(RegisterParameter("weight", {columns}, Init::Ones(), /*decays=*/false)),
      bias_(RegisterParameter("bias", {columns}, Init::Zeros(), /*decays=*/false)),
      is_layer_norm_(is_layer_norm),
      eps_(eps) {}

Tensor MobileBertNorm::Forward(const Tensor& x, const Tensor& residual,
                               const DropoutSpec& dropout) const {
  if (is_layer_norm_) {
    if (!residual.defined()) return LayerNorm(x, weight_, bias_, eps_);
    return DropoutAddLayerNorm(x, residual, weight_, bias_, eps_, dropout);
  }
  if (dropout.p == 0) return ScaleShift(x, residual, weight_, bias_);
  // The host drops out of float32 only.
  const Tensor dropped = Cast(Dropout(Cast(x, DType::kF32), dropout), x.dtype());
  return ScaleShift(dropped, residual, weight_, bias_);
}

MobileBertDense::MobileBertDense(int64_t in, int64_t out, const MobileBertOptions& options,
                                 double eps)
    : dense_(Register<nn::Linear>("dense", in, out, Init::Normal(options.initializer_range))),
      norm_(Register<MobileBertNorm>("LayerNorm", out, options.has_layer_norms, eps)) {}

Tensor MobileBertDense::Forward(const Tensor& x, const Tensor& residual,
                                const DropoutSpec& dropout) const {
  return norm_->Forward(dense_->Forward(x), residual, dropout);
}

Tensor MobileBertDense::Forward(const nn::Linear& inner, const Tensor& x, const Tensor& residual,
                                const DropoutSpec& dropout) const {
  return norm_->Forward(
      FeedForward(x, inner.weight, inner.bias, inner.activation(), dense_->weight, dense_->bias),
      residual, dropout);
}

MobileBertLayer::MobileBertLayer(const MobileBertOptions& options) : options_(options) {
  const int64_t H = options.hidden_size, A = options.inner_size, I = options.intermediate_size;
  const double eps = options.layer_norm_eps;
  // Transformers gives this norm no epsilon, so it has that of PyTorch's layer norm.
  constexpr double kOutputEps = 1e-5;
  const Init init = Init::Normal(options.initializer_range);
  const bool own_attention = options.use_bottleneck && options.key_query_shared_bottleneck;
  if (options.use_bottleneck) {
    input_bottleneck_ = Register<MobileBertDense>("bottleneck.input", H, A, options, eps);
  }
  if (own_attention) {
    attention_bottleneck_ = Register<MobileBertDense>("bottleneck.attention", H, A, options, eps);
    if (options.use_bottleneck_attention) {  // nothing reads it
      for (const Parameter& p : attention_bottleneck_->Parameters()) {
        Tensor(p.tensor).SetRequiresGrad(false);
      }
    }
  }
  query_ = Register<nn::Linear>("attention.self.query", A, A, init);
  key_ = Register<nn::Linear>("attention.self.key", A, A, init);
  value_ = Register<nn::Linear>("attention.self.value", options.use_bottleneck_attention ? A : H, A,
                                init);
  attention_output_ = Register<MobileBertDense>("attention.output", A, A, options, eps);
  for (int64_t i = 0; i < options.num_feedforward_networks; ++i) {
    const bool last = i + 1 == options.num_feedforward_networks;
    const std::string path = last ? "" : absl::StrCat("ffn.", i, ".");
    intermediate_.push_back(
        Register<nn::Linear>(path + "intermediate.dense", A, I, init, options.hidden_act));
    output_.push_back(
        Register<MobileBertDense>(path + "output", I, A, options, last ? kOutputEps : eps));
  }
  if (options.use_bottleneck) {
    output_bottleneck_ = Register<MobileBertDense>("output.bottleneck", A, H, options, eps);
  }
}

MobileBertLayer::Attended MobileBertLayer::Attend(const Tensor& hidden_states,
                                                  const nn::ForwardContext& context,
                                                  bool first_tokens_only,
                                                  const std::string& site) const {
  const auto asked = [&](const Tensor& x) {  // the rows that have queries
    return first_tokens_only ? nn::FirstTokens(x, context.sequences.cu_seqlens) : x;
  };
  Attended out;
  Tensor keys = hidden_states, values = hidden_states;
  if (input_bottleneck_ == nullptr) {
    out.residual = asked(hidden_states);
  } else if (options_.use_bottleneck_attention) {
    keys = values = input_bottleneck_->Forward(hidden_states);
    out.residual = asked(keys);
  } else {
    if (attention_bottleneck_ != nullptr) keys = attention_bottleneck_->Forward(hidden_states);
    out.residual = input_bottleneck_->Forward(asked(hidden_states));
  }
  const Tensor kv =
      keys.impl() == values.impl()
          ? LinearStack(keys, {value_->weight, key_->weight}, {value_->bias, key_->bias})
          : ConcatRows({value_->Forward(values), key_->Forward(keys)});
  AttentionOptions attention;
  attention.num_heads = options_.num_attention_heads;
  attention.first_query_only = first_tokens_only;
  attention.values_first = true;
  attention.dropout = context.Dropout(options_.attention_probs_dropout_prob, site);
  out.result = PackedAttention(query_->Forward(asked(keys)), kv, context.sequences, attention);
  return out;
}

Tensor MobileBertLayer::Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                                bool first_tokens_only, const std::string& site) const {
  // With bottlenecks, dropout is behind the last one only.
  const auto dropout = [&](bool active, const char* place) {
    return active ? context.Dropout(options_.hidden_dropout_prob, site + place, first_tokens_only)
                  : DropoutSpec();
  };
  const bool plain = !options_.use_bottleneck;
  Tensor a = [&] {
    const Attended attended =
        Attend(hidden_states, context, first_tokens_only, site + ".attention.self");
    return attention_output_->Forward(attended.result, attended.residual,
                                      dropout(plain, ".attention.output"));
  }();
  for (size_t i = 0; i < output_.size(); ++i) {
    const bool last = i + 1 == output_.size();
    a = output_[i]->Forward(*intermediate_[i], a, a, dropout(plain && last, ".output"));
  }
  if (plain) return a;
  const Tensor residual = first_tokens_only
                              ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                              : hidden_states;
  return output_bottleneck_->Forward(a, residual, dropout(true, ".output.bottleneck"));
}

}  // namespace lathe
