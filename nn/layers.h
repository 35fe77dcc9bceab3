// Layers: modules around the ops of core/, with parameters under Transformers' names.
//
//   nn::Linear dense(768, 2, Init::Normal(0.02));   // dense.weight [2, 768], dense.bias [2]
//   Tensor logits = dense(x);                       // or dense.Forward(x): [N, 768] -> [N, 2]
#pragma once

#include "lathe/core/ops/grouped/grouped_linear.h"
#include "lathe/core/ops/linear.h"
#include "lathe/nn/callable_module.h"
#include "lathe/nn/context.h"

namespace lathe::nn {

// act(x W^T + b): [N, in] -> [N, out].
class Linear : public CallableModule<Linear> {
 public:
  Linear(int64_t in, int64_t out, Init init, ActivationKind activation = ActivationKind::kNone,
         bool with_bias = true)
      : weight(RegisterParameter("weight", {out, in}, init)), activation_(activation) {
    if (with_bias) bias = RegisterParameter("bias", {out}, Init::Zeros(), /*decays=*/false);
  }
  Tensor Forward(const Tensor& x) const { return lathe::Linear(x, weight, bias, activation_); }

  // Returns the activation applied to the product's result; kNone for none.
  ActivationKind activation() const { return activation_; }

  Tensor weight, bias;

 private:
  ActivationKind activation_;
};

// A linear layer in groups of columns: [N, in] -> [N, out], with `groups` dividing both. The weight
// is [out, in / groups, 1], as Conv1d has it, or with kInOut [groups, in / groups, out / groups].
class GroupedLinear : public CallableModule<GroupedLinear> {
 public:
  GroupedLinear(int64_t in, int64_t out, int64_t groups, Init init,
                GroupedWeight layout = GroupedWeight::kOutIn);
  Tensor Forward(const Tensor& x) const { return lathe::GroupedLinear(x, layer); }

  GroupedLayer layer;
};

// A table of rows. The padding row, if there is one, starts at 0 and gets no gradient.
class Embedding : public CallableModule<Embedding> {
 public:
  Embedding(int64_t rows, int64_t columns, double std_dev, int64_t padding_row_index = -1)
      : Embedding(rows, columns, Init::Normal(std_dev, padding_row_index), padding_row_index) {}
  // The padding row has the initialiser's values.
  Embedding(int64_t rows, int64_t columns, Init init, int64_t padding_row_index)
      : weight(RegisterParameter("weight", {rows, columns}, init,
                                 /*decays=*/true, /*is_table=*/true)),
        padding_row(padding_row_index) {}
  // ids: [...] i32 -> [..., C].
  Tensor Forward(const Tensor& ids) const;

  Tensor weight;
  int64_t padding_row;
};

// Normalises over the last dimension. Neither parameter has weight decay.
class LayerNorm : public CallableModule<LayerNorm> {
 public:
  LayerNorm(int64_t n, double eps_value, bool with_bias = true)
      : weight(RegisterParameter("weight", {n}, Init::Ones(), /*decays=*/false)), eps(eps_value) {
    if (with_bias) bias = RegisterParameter("bias", {n}, Init::Zeros(), /*decays=*/false);
  }
  Tensor Forward(const Tensor& x) const;
  // Returns LayerNorm(dropout(x) + residual), fused.
  Tensor Forward(const Tensor& x, const Tensor& residual, const DropoutSpec& dropout) const;

  Tensor weight, bias;
  double eps;
};

// Divides by the root mean square over the last dimension. The weight has no weight decay.
class RmsNorm : public CallableModule<RmsNorm> {
 public:
  RmsNorm(int64_t n, double eps)
      : weight(RegisterParameter("weight", {n}, Init::Ones(), /*decays=*/false)), eps_(eps) {}
  Tensor Forward(const Tensor& x) const;

  Tensor weight;

 private:
  double eps_;
};

// Drops elements in training only. `site` names the place, so that each place has its own masks.
class Dropout : public CallableModule<Dropout> {
 public:
  Dropout(double p, std::string site) : p_(p), site_(std::move(site)) {}
  // x: [T, C], or [B, C] for the rows of first tokens.
  Tensor Forward(const Tensor& x, const ForwardContext& context, bool first_tokens = false) const {
    return lathe::Dropout(x, context.Dropout(p_, site_, first_tokens));
  }

 private:
  NamedSettings OwnSettings() const override { return {{"p", ExactText(p_)}}; }
  double p_;
  std::string site_;
};

}  // namespace lathe::nn
