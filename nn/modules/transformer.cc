#include "lathe/nn/modules/transformer.h"

#include <cmath>

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear_parts/linear_parts.h"

namespace lathe::nn {
namespace {

// Runs a layer of packed sequences on padded ones: [B, S, E] -> [B, S, E].
template <typename Layer>
Tensor OnPadded(const char* op, const Layer& layer, const Tensor& x, const Tensor& mask) {
  Check(x.defined() && x.ndim() == 3, op, "expected shape [B, S, E] but got ",
        x.defined() ? ToString(x.shape()) : "an undefined tensor");
  const Packing packing =
      mask.defined() ? Packing(mask, x.device()) : Packing(x.dim(0), x.dim(1), x.device());
  return packing.Unpack(layer.Forward(packing.Pack(x), packing.context()));
}

// Returns dropout(x) in x's dtype.
Tensor Drop(const Tensor& x, const DropoutSpec& dropout) {
  if (dropout.p == 0) return x;
  return Cast(lathe::Dropout(Cast(x, DType::kF32), dropout), x.dtype());
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t embed_dim, int64_t num_heads, double dropout,
                                       bool bias)
    : num_heads_(num_heads), dropout_(dropout) {
  Check(embed_dim > 0 && num_heads > 0 && embed_dim % num_heads == 0, "multihead_attention",
        "embed_dim must be a multiple of num_heads but is ", embed_dim, " for ", num_heads,
        " heads");
  Check(dropout >= 0 && dropout < 1, "multihead_attention", "dropout must be in [0, 1) but is ",
        dropout);
  const double bound = std::sqrt(6.0 / static_cast<double>(4 * embed_dim));  // Xavier's
  in_proj_weight_ =
      RegisterParameter("in_proj_weight", {3 * embed_dim, embed_dim}, Init::Uniform(-bound, bound));
  if (bias) {
    in_proj_bias_ =
        RegisterParameter("in_proj_bias", {3 * embed_dim}, Init::Zeros(), /*decays=*/false);
  }
  out_proj_ = Register<Linear>("out_proj", embed_dim, embed_dim, DefaultInit(embed_dim),
                               ActivationKind::kNone, bias);
}

NamedSettings MultiheadAttention::OwnSettings() const {
  return {{"num_heads", std::to_string(num_heads_)}, {"dropout", ExactText(dropout_)}};
}

Tensor MultiheadAttention::Forward(const Tensor& x, const ForwardContext& context,
                                   const std::string& site) const {
  const int64_t embed_dim = in_proj_weight_.dim(1);
  Check(x.defined() && x.ndim() == 2 && x.dim(1) == embed_dim, "multihead_attention",
        "expected shape [T, ", embed_dim, "] but got ",
        x.defined() ? ToString(x.shape()) : "an undefined tensor");
  AttentionOptions options;
  options.num_heads = num_heads_;
  options.dropout = context.Dropout(dropout_, site);
  const Tensor qkv = LinearParts(x, in_proj_weight_, in_proj_bias_, {.parts = 3});
  return out_proj_->Forward(PackedSelfAttention(qkv, context.sequences, options));
}

Tensor MultiheadAttention::Forward(const Tensor& x, const PackedSequences& sequences) const {
  ForwardContext context;
  context.sequences = sequences;
  return Forward(x, context);
}

Tensor MultiheadAttention::Forward(const Tensor& x, const Tensor& attention_mask) const {
  return OnPadded("multihead_attention", *this, x, attention_mask);
}

TransformerEncoderLayer::TransformerEncoderLayer(const TransformerEncoderOptions& o) : options_(o) {
  self_attn_ = Register<MultiheadAttention>("self_attn", o.d_model, o.nhead, o.dropout);
  linear1_ = Register<Linear>("linear1", o.d_model, o.dim_feedforward, DefaultInit(o.d_model),
                              o.activation);
  linear2_ =
      Register<Linear>("linear2", o.dim_feedforward, o.d_model, DefaultInit(o.dim_feedforward));
  norm1_ = Register<LayerNorm>("norm1", o.d_model, o.layer_norm_eps);
  norm2_ = Register<LayerNorm>("norm2", o.d_model, o.layer_norm_eps);
}

NamedSettings TransformerEncoderLayer::OwnSettings() const {
  return {{"dropout", ExactText(options_.dropout)},
          {"activation", std::to_string(static_cast<int>(options_.activation))},
          {"layer_norm_eps", ExactText(options_.layer_norm_eps)},
          {"norm_first", options_.norm_first ? "true" : "false"}};
}

// W_2 dropout(act(W_1 x)).
Tensor TransformerEncoderLayer::Inner(const Tensor& x, const DropoutSpec& dropout) const {
  if (dropout.p == 0) {
    return FeedForward(x, linear1_->weight, linear1_->bias, linear1_->activation(),
                       linear2_->weight, linear2_->bias);
  }
  return linear2_->Forward(Drop(linear1_->Forward(x), dropout));
}

Tensor TransformerEncoderLayer::Forward(const Tensor& x, const ForwardContext& context,
                                        const std::string& site) const {
  const auto dropout = [&](const char* place) {
    return context.Dropout(options_.dropout, site + place);
  };
  const auto attention = [&](const Tensor& rows) {
    return self_attn_->Forward(rows, context, site + ".self_attn");
  };
  if (!options_.norm_first) {
    const Tensor a = norm1_->Forward(attention(x), x, dropout(".dropout1"));
    return norm2_->Forward(Inner(a, dropout(".dropout")), a, dropout(".dropout2"));
  }
  Check(x.dtype() == DType::kF32, "transformer_encoder",
        "with norm_first hidden states must be float32 but are ", ToString(x.dtype()));
  const auto normed = [&](const LayerNorm& norm, const Tensor& rows) {
    return Cast(norm.Forward(rows), compute_dtype());
  };
  const auto add = [&](const Tensor& residual, const Tensor& rows, const char* place) {
    return Add(residual, Drop(Cast(rows, DType::kF32), dropout(place)));
  };
  const Tensor a = add(x, attention(normed(*norm1_, x)), ".dropout1");
  return add(a, Inner(normed(*norm2_, a), dropout(".dropout")), ".dropout2");
}

Tensor TransformerEncoderLayer::Forward(const Tensor& x, const Tensor& attention_mask) const {
  return OnPadded("transformer_encoder", *this, x, attention_mask);
}

TransformerEncoder::TransformerEncoder(const TransformerEncoderOptions& options, int64_t num_layers)
    : norm_first_(options.norm_first) {
  Check(num_layers >= 0, "transformer_encoder", "num_layers must be at least 0 but is ",
        num_layers);
  layers_ = Register<ModuleList<TransformerEncoderLayer>>("layers");
  for (int64_t i = 0; i < num_layers; ++i) layers_->Add(options);
  if (options.final_norm) {
    norm_ = Register<LayerNorm>("norm", options.d_model, options.layer_norm_eps);
  }
}

Tensor TransformerEncoder::Forward(const Tensor& x, const ForwardContext& context,
                                   const std::string& site) const {
  Tensor hidden_states = Cast(x, norm_first_ ? DType::kF32 : compute_dtype());
  for (int64_t i = 0; i < layers_->size(); ++i) {
    const TransformerEncoderLayer& layer = (*layers_)[i];
    hidden_states = layer.Forward(hidden_states, context, site + ".layers." + std::to_string(i));
  }
  if (norm_ != nullptr) hidden_states = norm_->Forward(hidden_states);
  return Cast(hidden_states, DType::kF32);
}

Tensor TransformerEncoder::Forward(const Tensor& x, const Tensor& attention_mask) const {
  return OnPadded("transformer_encoder", *this, x, attention_mask);
}

}  // namespace lathe::nn
