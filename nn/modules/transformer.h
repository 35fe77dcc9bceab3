// MultiheadAttention and TransformerEncoder with the parameters, names and formulas of PyTorch's,
// so that their weights can be exchanged (nn/state/module_state.h). Attention is that of a sequence
// to itself: there are no other keys, no causal mask and no attention weights as a result.
//
//   nn::TransformerEncoder encoder({.d_model = 64, .nhead = 4, .dim_feedforward = 128}, 2);
//   encoder.Initialize(42);
//   Tensor y = encoder(x, attention_mask);   // x: [B, S, 64], attention_mask: [B, S]
//
// Padded tensors are packed at the door. Rows of padding give 0, where PyTorch gives numbers that
// mean nothing. Dropout needs a ForwardContext that is training (nn/context.h); other calls have
// none.
#pragma once

#include <memory>
#include <string>

#include "lathe/nn/callable_module.h"
#include "lathe/nn/layers.h"
#include "lathe/nn/modules/containers.h"
#include "lathe/nn/modules/packing.h"

namespace lathe::nn {

// Parameters: in_proj_weight [3 E, E], in_proj_bias [3 E], out_proj.weight [E, E], out_proj.bias
// [E].
class MultiheadAttention : public CallableModule<MultiheadAttention> {
 public:
  // num_heads must divide embed_dim. dropout: of the attention probabilities.
  MultiheadAttention(int64_t embed_dim, int64_t num_heads, double dropout = 0, bool bias = true);

  // x: [T, E], packed -> [T, E]. `site` tells the places of dropout in a model apart.
  Tensor Forward(const Tensor& x, const ForwardContext& context,
                 const std::string& site = "self_attn") const;
  // x: [T, E], packed -> [T, E]. Without dropout.
  Tensor Forward(const Tensor& x, const PackedSequences& sequences) const;
  // x: [B, S, E], padded -> [B, S, E]. attention_mask: [B, S], not 0 for tokens (Packing);
  // undefined if all are tokens. Without dropout.
  Tensor Forward(const Tensor& x, const Tensor& attention_mask) const;

 private:
  NamedSettings OwnSettings() const override;
  int64_t num_heads_;
  double dropout_;
  Tensor in_proj_weight_, in_proj_bias_;
  std::shared_ptr<Linear> out_proj_;
};

struct TransformerEncoderOptions {
  int64_t d_model = 512;
  int64_t nhead = 8;
  int64_t dim_feedforward = 2048;
  double dropout = 0.1;
  ActivationKind activation = ActivationKind::kRelu;
  double layer_norm_eps = 1e-5;
  bool norm_first = false;  // pre-norm
  bool final_norm = false;  // of the encoder: a norm behind the last layer
};

// Parameters: self_attn, linear1, linear2, norm1 and norm2.
class TransformerEncoderLayer : public CallableModule<TransformerEncoderLayer> {
 public:
  explicit TransformerEncoderLayer(const TransformerEncoderOptions& options);
  // x: [T, E], packed -> [T, E]. With norm_first x and the result are float32, and the layer
  // computes in compute_dtype(). Otherwise it computes in x's dtype.
  Tensor Forward(const Tensor& x, const ForwardContext& context,
                 const std::string& site = "layer") const;
  // x: [B, S, E], padded -> [B, S, E]; see MultiheadAttention.
  Tensor Forward(const Tensor& x, const Tensor& attention_mask) const;

 private:
  NamedSettings OwnSettings() const override;
  Tensor Inner(const Tensor& x, const DropoutSpec& dropout) const;

  TransformerEncoderOptions options_;
  std::shared_ptr<MultiheadAttention> self_attn_;
  std::shared_ptr<Linear> linear1_, linear2_;
  std::shared_ptr<LayerNorm> norm1_, norm2_;
};

// Parameters: layers.0 and so on, and norm if there is a final one. It computes in compute_dtype()
// and returns float32, as Lathe's models do.
class TransformerEncoder : public CallableModule<TransformerEncoder> {
 public:
  TransformerEncoder(const TransformerEncoderOptions& options, int64_t num_layers);
  Tensor Forward(const Tensor& x, const ForwardContext& context,
                 const std::string& site = "encoder") const;
  Tensor Forward(const Tensor& x, const Tensor& attention_mask) const;

 private:
  bool norm_first_;
  std::shared_ptr<ModuleList<TransformerEncoderLayer>> layers_;
  std::shared_ptr<LayerNorm> norm_;  // null if there is none
};

}  // namespace lathe::nn
