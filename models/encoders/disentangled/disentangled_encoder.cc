#include "lathe/models/encoders/disentangled/disentangled_encoder.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/activation.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/grouped/grouped_linear.h"
#include "lathe/core/ops/unfold/unfold.h"
#include "lathe/models/rows.h"

namespace lathe {
namespace {

constexpr const char* kModel = "deberta";

}  // namespace

DisentangledEmbeddings::DisentangledEmbeddings(const DisentangledOptions& options)
    : options_(options) {
  const nn::PostNormLayerOptions& o = options.layer.layer;
  const int64_t E = options.embedding_size;
  const double std_dev = o.initializer_range;
  word_ = Register<nn::Embedding>("word_embeddings", options.vocab_size, E, std_dev,
                                  options.pad_token_id);
  if (options.adds_positions) {
    position_ =
        Register<nn::Embedding>("position_embeddings", options.max_position_embeddings, E, std_dev);
  }
  if (options.type_vocab_size > 0) {
    token_type_ =
        Register<nn::Embedding>("token_type_embeddings", options.type_vocab_size, E, std_dev);
  }
  if (E != o.hidden_size) {
    projection_ = Register<nn::Linear>("embed_proj", E, o.hidden_size, Init::Normal(std_dev),
                                       ActivationKind::kNone, /*with_bias=*/false);
  }
  norm_ = Register<nn::LayerNorm>("LayerNorm", o.hidden_size, o.layer_norm_eps);
}

Tensor DisentangledEmbeddings::Forward(const Batch& batch,
                                       const nn::ForwardContext& context) const {
  CheckPositions(batch, kModel, options_.max_position_embeddings);
  CheckNoGaps(batch, kModel);
  if (!device().is_cpu()) {  // a device's kernels don't check ids
    CheckEmbeddingIds(batch.input_ids, options_.vocab_size, 0);
    if (token_type_ != nullptr) {
      CheckEmbeddingIds(batch.token_type_ids, options_.type_vocab_size, 1);
    }
  }
  std::vector<Tensor> ids = {context.input_ids}, tables = {word_->weight};
  std::vector<int64_t> padding_rows = {word_->padding_row};
  const auto add = [&](const Tensor& rows, const std::shared_ptr<nn::Embedding>& embedding) {
    if (embedding == nullptr) return;
    ids.push_back(rows);
    tables.push_back(embedding->weight);
    padding_rows.push_back(-1);
  };
  add(context.token_type_ids, token_type_);
  add(context.row_positions, position_);
  const DropoutSpec dropout =
      context.Dropout(options_.layer.layer.hidden_dropout_prob, "embeddings");
  if (projection_ == nullptr) {
    return EmbeddingLayerNorm(ids, tables, padding_rows, norm_->weight, norm_->bias, norm_->eps,
                              dropout, compute_dtype());
  }
  const Tensor sum = Cast(EmbeddingSum(ids, tables, padding_rows), compute_dtype());
  // The host has dropout for float32 only.
  const Tensor normed = Cast(norm_->Forward(projection_->Forward(sum)), DType::kF32);
  return Cast(Dropout(normed, dropout), compute_dtype());
}

DisentangledConvolution::DisentangledConvolution(const DisentangledOptions& options)
    : options_(options) {
  const int64_t H = options.layer.layer.hidden_size;
  conv_.groups = options.conv_groups;
  conv_.weight =
      RegisterParameter("conv.weight", {H, H / options.conv_groups, options.conv_kernel_size},
                        Init::Normal(options.layer.layer.initializer_range));
  conv_.bias = RegisterParameter("conv.bias", {H}, Init::Zeros(), /*decays=*/false);
  norm_ = Register<nn::LayerNorm>("LayerNorm", H, options.layer.layer.layer_norm_eps);
}

Tensor DisentangledConvolution::Forward(const Tensor& embedded, const Tensor& layer,
                                        const nn::ForwardContext& context,
                                        bool first_tokens_only) const {
  const auto neighbours = [&] {
    const Tensor rows =
        PackedUnfold(embedded, context.sequences, options_.conv_kernel_size, UnfoldOrder::kColumns);
    return first_tokens_only ? nn::FirstTokens(rows, context.sequences.cu_seqlens) : rows;
  };
  Tensor y = GroupedLinear(neighbours(), conv_);
  const DropoutSpec dropout =
      context.Dropout(options_.layer.layer.hidden_dropout_prob, "encoder.conv", first_tokens_only);
  // The host drops out of float32 only.
  if (dropout.p > 0) y = Cast(Dropout(Cast(y, DType::kF32), dropout), compute_dtype());
  return norm_->Forward(Activation(y, options_.conv_act), layer, {});
}

DisentangledEncoder::DisentangledEncoder(NamedSettings settings, const DisentangledOptions& options)
    : Encoder(kModel, std::move(settings)), options_(options) {
  const nn::PostNormLayerOptions& o = options.layer.layer;
  embeddings_ = Register<DisentangledEmbeddings>("embeddings", options);
  if (options.has_distance_table) {
    distances_ =
        RegisterParameter("encoder.rel_embeddings.weight", {2 * options.span(), o.hidden_size},
                          Init::Normal(o.initializer_range));
  }
  if (options.norms_distances) {
    norm_ = Register<nn::LayerNorm>("encoder.LayerNorm", o.hidden_size, o.layer_norm_eps);
  }
  if (!options.layer.has_distances) {  // nothing reads the table or its norm
    if (distances_.defined()) distances_.SetRequiresGrad(false);
    if (norm_ != nullptr) {
      norm_->weight.SetRequiresGrad(false);
      norm_->bias.SetRequiresGrad(false);
    }
  }
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_.push_back(
        Register<DisentangledLayer>(absl::StrCat("encoder.layer.", i), options.layer));
    if (i == 0 && options.conv_kernel_size > 0) {
      convolution_ = Register<DisentangledConvolution>("encoder.conv", options);
    }
  }
}

Tensor DisentangledEncoder::Embed(const Batch& batch, const nn::ForwardContext& context) const {
  return embeddings_->Forward(batch, context);
}

// Lengths are rounded up to a power of two, so that there are few tables.
Distances DisentangledEncoder::DistancesFor(int64_t max_seqlen) const {
  if (!distances_.defined()) return {};
  const auto length =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_seqlen, 16))));
  const std::lock_guard lock(mutex_);
  for (const Made& made : made_) {
    if (made.length == length && made.distances.rows.device() == device()) return made.distances;
  }
  const int64_t farthest = std::min(length, max_length()) - 1;
  Distances distances;
  distances.table = distances_;
  distances.norm = norm_.get();
  distances.begin = DistanceRow(options_, -farthest);
  distances.end = DistanceRow(options_, farthest) + 1;
  std::vector<int32_t> rows, places;
  for (int64_t distance = 1 - length; distance < length; ++distance) {
    rows.push_back(static_cast<int32_t>(
        DistanceRow(options_, std::clamp(distance, -farthest, farthest)) - distances.begin));
  }
  for (int64_t row = distances.begin; row < distances.end; ++row) {
    places.push_back(static_cast<int32_t>(row));
  }
  distances.rows = Tensor::FromVector(rows).To(device());
  distances.places = Tensor::FromVector(places).To(device());
  distances.samples = Tensor::Zeros(distances.places.shape(), DType::kI32).To(device());
  made_.push_back({length, distances});
  return distances;
}

// Gradient checkpointing may call the function when the encoder is gone. By then it has its
// distances from the first call.
LayerFunction DisentangledEncoder::Layer(int64_t i) const {
  return [this, layer = layers_[i], convolution = i == 0 ? convolution_ : nullptr, norm = norm_,
          known = std::make_shared<Distances>(), site = absl::StrCat("encoder.layer.", i)](
             const Tensor& hidden_states, const nn::ForwardContext& context, bool first_only) {
    if (!known->rows.defined() && layer->has_distances()) {
      *known = DistancesFor(context.sequences.max_seqlen);
    }
    const Tensor y = layer->Forward(hidden_states, context, *known, first_only, site);
    return convolution == nullptr ? y : convolution->Forward(hidden_states, y, context, first_only);
  };
}

}  // namespace lathe
