#include "lathe/models/encoders/disentangled/disentangled_layer.h"

#include <absl/strings/str_cat.h>

#include <cmath>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/permute.h"

namespace lathe {

DisentangledAttention::DisentangledAttention(const DisentangledLayerOptions& options)
    : options_(options) {
  const int64_t H = options.layer.hidden_size;
  const Init init = Init::Normal(options.layer.initializer_range);
  const auto linear = [&](const char* name, bool with_bias = true) {
    return Register<nn::Linear>(name, H, H, init, ActivationKind::kNone, with_bias);
  };
  const bool c2p = options.has_distances && options.content_to_position;
  const bool p2c = options.has_distances && options.position_to_content;
  if (options.fused_projections) {
    in_proj_ = RegisterParameter("in_proj.weight", {3 * H, H}, init);
    q_bias_ = RegisterParameter("q_bias", {H}, Init::Zeros(), /*decays=*/false);
    v_bias_ = RegisterParameter("v_bias", {H}, Init::Zeros(), /*decays=*/false);
    if (options.talking_heads) {
      const int64_t heads = options.layer.num_attention_heads;
      mix_scores_ = RegisterParameter("head_logits_proj.weight", {heads, heads}, init);
      mix_probabilities_ = RegisterParameter("head_weights_proj.weight", {heads, heads}, init);
    }
    if (c2p) distance_key_ = linear("pos_proj", /*with_bias=*/false);
    if (p2c) distance_query_ = linear("pos_q_proj");
    return;
  }
  query_ = linear("query_proj");
  key_ = linear("key_proj");
  value_ = linear("value_proj");
  if (options.shares_projections) {
    if (c2p) distance_key_ = key_;
    if (p2c) distance_query_ = query_;
  } else {
    if (c2p) distance_key_ = linear("pos_key_proj");
    if (p2c) distance_query_ = linear("pos_query_proj");
  }
}

DisentangledAttention::Weights DisentangledAttention::WeightsOf() const {
  if (!options_.fused_projections) {
    return {query_->weight, key_->weight, value_->weight, query_->bias, key_->bias, value_->bias};
  }
  // in_proj holds a query's, a key's and a value's rows for each head in turn.
  const int64_t H = options_.layer.hidden_size, heads = options_.layer.num_attention_heads;
  const Tensor of_heads = Reshape(in_proj_, {heads, 3 * (H / heads) * H});
  const auto part = [&](int64_t i) {
    const int64_t columns = (H / heads) * H;
    return Reshape(SliceColumns(of_heads, i * columns, (i + 1) * columns), {H, H});
  };
  return {part(0), part(1), part(2), q_bias_, Tensor(), v_bias_};
}

Tensor DisentangledAttention::Forward(const Tensor& hidden_states,
                                      const nn::ForwardContext& context, const Distances& distances,
                                      bool first_tokens_only, const std::string& site) const {
  const Weights w = WeightsOf();
  const Tensor q =
      lathe::Linear(first_tokens_only ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                                      : hidden_states,
                    w.query, w.query_bias);
  // LinearStack takes biases of all its layers.
  const Tensor kv = w.key_bias.defined()
                        ? LinearStack(hidden_states, {w.value, w.key}, {w.value_bias, w.key_bias})
                        : ConcatRows({lathe::Linear(hidden_states, w.value, w.value_bias),
                                      lathe::Linear(hidden_states, w.key, Tensor())});
  AttentionOptions options;
  options.num_heads = options_.layer.num_attention_heads;
  options.first_query_only = first_tokens_only;
  options.values_first = true;
  options.dropout = context.Dropout(options_.layer.attention_probs_dropout_prob, site);
  const int terms = 1 + options_.content_to_position + options_.position_to_content;
  options.scale = 1 / std::sqrt(static_cast<double>(q.dim(1) / options.num_heads) * terms);
  if (distance_key_ != nullptr || distance_query_ != nullptr) {
    Tensor table = SliceRows(distances.table, distances.begin, distances.end);
    if (distances.norm != nullptr) table = distances.norm->Forward(table);
    DropoutSpec dropout =
        context.Dropout(options_.layer.hidden_dropout_prob, site + ".pos_dropout");
    dropout.row_samples = distances.samples;
    dropout.row_positions = distances.places;
    table = Cast(Dropout(table, dropout), q.dtype());
    options.relative.rows = distances.rows;
    if (distance_key_ != nullptr) options.relative.keys = distance_key_->Forward(table);
    if (distance_query_ != nullptr) options.relative.queries = distance_query_->Forward(table);
  }
  return Attend(q, kv, context, options);
}

namespace {

constexpr int64_t kMostOnGpu = 256;  // columns of a head in attention's kernels for devices

// Returns mix [n, n] with each column repeated for a head's columns: [n, H].
Tensor Spread(const Tensor& mix, int64_t columns) {
  const int64_t n = mix.dim(0), d = columns / n;
  const Tensor ones = Tensor::Full({1, 1, d}, 1, mix.dtype(), mix.device());
  return Reshape(Mul(Reshape(mix, {n, n, 1}), ones), {n, columns});
}

// Returns x [N, H] once for each row of `by` [n, H], multiplied by it: [N, n H].
Tensor Multiplied(const Tensor& x, const Tensor& by) {
  const Tensor wide = Cast(x, DType::kF32);  // the host multiplies float32 only
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < by.dim(0); ++i) {
    parts.push_back(Cast(Mul(wide, SliceRows(by, i, i + 1)), x.dtype()));
  }
  return ConcatColumns(parts);
}

Tensor Repeated(const Tensor& x, int64_t times) {
  return ConcatColumns(std::vector<Tensor>(static_cast<size_t>(times), x));
}

}  // namespace

// Head g's mixed score is sum_h mix[g, h] q_h . k_h, the product of all columns of k with those of
// q, multiplied by mix[g, h]. So the heads of PackedAttention have all H columns here. Each gives
// its probabilities times all columns of the values, and these are mixed at the end.
Tensor DisentangledAttention::Attend(const Tensor& q, const Tensor& kv,
                                     const nn::ForwardContext& context,
                                     AttentionOptions options) const {
  if (!mix_scores_.defined()) return PackedAttention(q, kv, context.sequences, options);
  const int64_t heads = options.num_heads, H = q.dim(1);
  if (!q.device().is_cpu() && H > kMostOnGpu) {
    throw InvalidArgument(
        absl::StrCat("[deberta] hidden_size is ", H, ", but a GPU takes talking heads up to ",
                     kMostOnGpu, " only"),
        "use the CPU for this model");
  }
  const Tensor scores = Spread(mix_scores_, H);
  if (options.relative.keys.defined()) {
    options.relative.keys = Repeated(options.relative.keys, heads);
  }
  if (options.relative.queries.defined()) {
    options.relative.queries = Multiplied(options.relative.queries, scores);
  }
  const Tensor all =
      PackedAttention(Multiplied(q, scores), Repeated(kv, heads), context.sequences, options);
  // Columns of head g get sum_h mix[g, h] of what head h gives for them.
  const Tensor probabilities = Spread(Transpose(mix_probabilities_), H);
  Tensor sum;
  for (int64_t h = 0; h < heads; ++h) {
    const Tensor of_head = Cast(SliceColumns(all, h * H, (h + 1) * H), DType::kF32);
    const Tensor part = Mul(of_head, SliceRows(probabilities, h, h + 1));
    sum = h == 0 ? part : Add(sum, part);
  }
  return Cast(sum, q.dtype());
}

DisentangledLayer::DisentangledLayer(const DisentangledLayerOptions& options)
    : dropout_(options.layer.hidden_dropout_prob), has_distances_(options.has_distances) {
  const int64_t H = options.layer.hidden_size, I = options.layer.intermediate_size;
  const Init init = Init::Normal(options.layer.initializer_range);
  const double eps = options.layer.layer_norm_eps;
  self_ = Register<DisentangledAttention>("attention.self", options);
  attention_output_ = Register<nn::Linear>("attention.output.dense", H, H, init);
  attention_norm_ = Register<nn::LayerNorm>("attention.output.LayerNorm", H, eps);
  intermediate_ = Register<nn::Linear>("intermediate.dense", H, I, init, options.layer.hidden_act);
  output_ = Register<nn::Linear>("output.dense", I, H, init);
  output_norm_ = Register<nn::LayerNorm>("output.LayerNorm", H, eps);
}

Tensor DisentangledLayer::Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                                  const Distances& distances, bool first_tokens_only,
                                  const std::string& site) const {
  const Tensor residual = first_tokens_only
                              ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                              : hidden_states;
  // Intermediate results have no names here, so that each is freed as soon as the next op is done.
  const Tensor a = attention_norm_->Forward(
      attention_output_->Forward(self_->Forward(hidden_states, context, distances,
                                                first_tokens_only, site + ".attention.self")),
      residual, context.Dropout(dropout_, site + ".attention.output", first_tokens_only));
  return output_norm_->Forward(
      FeedForward(a, intermediate_->weight, intermediate_->bias, intermediate_->activation(),
                  output_->weight, output_->bias),
      a, context.Dropout(dropout_, site + ".output", first_tokens_only));
}

}  // namespace lathe
