#include "lathe/models/encoders/disentangled_encoder.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"
#include "lathe/models/rows.h"

namespace lathe {
namespace {

constexpr const char* kModel = "deberta";

// The configuration may hold a list of terms, or a text such as "p2c|c2p".
void ReadTerms(const PretrainedConfig& config, DisentangledLayerOptions& options) {
  if (!config.has("pos_att_type")) return;
  const nlohmann::json& value = config.json()["pos_att_type"];
  std::vector<std::string> terms;
  if (value.is_string()) {
    terms = absl::StrSplit(absl::AsciiStrToLower(value.get<std::string>()), '|');
  } else if (value.is_array()) {
    for (const nlohmann::json& term : value) {
      terms.push_back(term.is_string() ? term.get<std::string>() : term.dump());
    }
  } else {
    terms.push_back(value.dump());
  }
  for (const std::string& term : terms) {
    const std::string name(absl::StripAsciiWhitespace(term));
    bool* const flag = name == "c2p"   ? &options.content_to_position
                       : name == "p2c" ? &options.position_to_content
                                       : nullptr;
    if (flag == nullptr || *flag) {
      throw WrongConfig(config.path(), {"pos_att_type"},
                        absl::StrCat("\"pos_att_type\" has \"", name, "\"",
                                     flag == nullptr ? "; known: c2p, p2c" : " twice"),
                        "correct the value");
    }
    *flag = true;
  }
}

void Refuse(const ConfigReader& reader, const std::string& key, const std::string& what) {
  throw WrongConfig(reader.path(), {key}, absl::StrCat("\"", key, "\" ", what),
                    "use a model without it");
}

}  // namespace

nlohmann::json DisentangledConfigDefaults() {
  return {{"attention_probs_dropout_prob", 0.1},
          {"cls_dropout", nullptr},
          {"embedding_size", nullptr},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", 0.1},
          {"hidden_size", 768},
          {"initializer_range", 0.02},
          {"intermediate_size", 3072},
          {"layer_norm_eps", 1e-7},
          {"max_position_embeddings", 512},
          {"max_relative_positions", -1},
          {"num_attention_heads", 12},
          {"num_hidden_layers", 12},
          {"pad_token_id", 0},
          {"pooler_dropout", 0.0},
          {"pooler_hidden_act", "gelu"},
          {"pos_att_type", nullptr},
          {"position_biased_input", true},
          {"relative_attention", false},
          {"type_vocab_size", 0},
          {"vocab_size", 50265}};
}

DisentangledOptions ReadDisentangledOptions(const PretrainedConfig& config,
                                            const ConfigReader& reader) {
  constexpr int64_t kMost = 1 << 30;
  DisentangledOptions options;
  nn::PostNormLayerOptions& o = options.layer.layer;
  o.hidden_size = reader.Int("hidden_size", 1, 32768);
  o.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  o.intermediate_size = reader.Int("intermediate_size", 1, kMost);
  o.hidden_act = reader.Activation("hidden_act");
  o.hidden_dropout_prob = reader.Probability("hidden_dropout_prob");
  o.attention_probs_dropout_prob = reader.Probability("attention_probs_dropout_prob");
  o.layer_norm_eps = reader.NotNegative("layer_norm_eps");
  o.initializer_range = reader.NotNegative("initializer_range");
  CheckHeads(reader, "hidden_size", "num_attention_heads");
  options.num_hidden_layers = reader.Int("num_hidden_layers", 1, 1024);
  options.vocab_size = reader.Int("vocab_size", 1, kMost);
  options.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMost);
  options.type_vocab_size = reader.Int("type_vocab_size", 0, kMost);
  options.embedding_size = config.GetInt("embedding_size", o.hidden_size, 1, 32768);
  options.pad_token_id = reader.Int("pad_token_id");
  options.adds_positions = reader.Bool("position_biased_input");
  ReadTerms(config, options.layer);
  const bool has_terms = options.layer.content_to_position || options.layer.position_to_content;
  options.layer.has_distances = reader.Bool("relative_attention");
  if (options.layer.has_distances && !has_terms) {
    throw WrongConfig(reader.path(), {"relative_attention", "pos_att_type"},
                      "\"relative_attention\" is true but \"pos_att_type\" names no term",
                      "name c2p or p2c there");
  }
  options.max_relative_positions = reader.Int("max_relative_positions", -1, kMost);
  if (options.max_relative_positions < 1) {
    options.max_relative_positions = options.max_position_embeddings;
  }
  if (config.GetInt("pooler_hidden_size", o.hidden_size) != o.hidden_size) {
    Refuse(reader, "pooler_hidden_size", "is not the hidden_size");
  }
  if (config.GetBool("talking_head", false)) Refuse(reader, "talking_head", "is not supported");
  if (config.GetInt("conv_kernel_size", 0) > 0) {
    Refuse(reader, "conv_kernel_size", "asks for a convolution, which is not supported");
  }
  if (reader.Declares("position_buckets")) {
    options.position_buckets = reader.Int("position_buckets", -1, kMost);
    const int64_t middle = options.position_buckets / 2;
    if (options.position_buckets == 1 ||
        (options.position_buckets > 0 && options.max_relative_positions - 1 <= middle &&
         options.max_position_embeddings - 1 > middle)) {
      throw WrongConfig(
          reader.path(), {"position_buckets", "max_relative_positions"},
          absl::StrCat("\"position_buckets\" ", options.position_buckets,
                       " does not fit \"max_relative_positions\" ", options.max_relative_positions),
          "correct one of the two");
    }
  }
  return options;
}

int64_t DistanceRow(const DisentangledOptions& options, int64_t distance) {
  int64_t bucket = distance;
  const int64_t middle = options.position_buckets / 2, span = options.span();
  if (options.position_buckets > 0 && std::abs(distance) > middle) {
    const float half = static_cast<float>(middle);
    const float most = static_cast<float>(options.max_relative_positions - 1);
    const float log = std::log(static_cast<float>(std::abs(distance)) / half) /
                      std::log(most / half) * static_cast<float>(middle - 1);
    const int64_t found = static_cast<int64_t>(std::ceil(log)) + middle;
    bucket = distance < 0 ? -found : found;
  }
  return std::clamp<int64_t>(bucket + span, 0, 2 * span - 1);
}

std::shared_ptr<SequenceClassifier> MakeDisentangledClassifier(const PretrainedConfig& config,
                                                               uint64_t seed,
                                                               const ConfigReader& reader,
                                                               const DisentangledOptions& options) {
  const bool own_rate = config.GetOptionalDouble("cls_dropout").has_value();
  return std::make_shared<EncoderClassifier>(
      config, seed, kModel, std::make_shared<DisentangledEncoder>(reader.Settings(), options),
      ClassifierHeadOptions{
          .dense = "pooler.dense",
          .output = "classifier",
          .activation = reader.Activation("pooler_hidden_act"),
          .input_dropout = reader.Probability("pooler_dropout"),
          .dropout = reader.Probability(own_rate ? "cls_dropout" : "hidden_dropout_prob"),
          .initializer_range = options.layer.layer.initializer_range});
}

PassMemory DisentangledMemory(const Module& classifier, const DisentangledOptions& encoder,
                              const MemoryOptions& options) {
  const int64_t H = encoder.layer.layer.hidden_size;
  PassMemory memory = PostNormEncoderMemory({.layer = encoder.layer.layer,
                                             .num_layers = encoder.num_hidden_layers,
                                             .num_different_layers = encoder.num_hidden_layers,
                                             .vocab_size = encoder.vocab_size,
                                             .embedding_size = encoder.embedding_size,
                                             .num_parameters = classifier.NumParameters(),
                                             .head_columns = 3 * H},
                                            options);
  if (!encoder.layer.has_distances) return memory;
  const int64_t length = std::min(options.max_seq_length, encoder.max_position_embeddings);
  const int64_t rows = DistanceRow(encoder, length - 1) - DistanceRow(encoder, 1 - length) + 1;
  const int64_t terms = encoder.layer.content_to_position + encoder.layer.position_to_content;
  // A layer keeps the normed rows in float32, the same in the compute dtype, and their projections.
  const int64_t layer = rows * H * (4 + (1 + terms) * SizeOf(options.compute_dtype));
  const int64_t layers = encoder.num_hidden_layers;
  (options.gradient_checkpointing ? memory.temporary : memory.kept) +=
      options.gradient_checkpointing ? layer : layers * layer;
  memory.inference += layer;
  return memory;
}

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
  Check(batch.max_seqlen <= options_.max_position_embeddings, kModel, "a sequence has ",
        batch.max_seqlen, " tokens but the model's max_position_embeddings is ",
        options_.max_position_embeddings);
  CheckNoGaps(batch, kModel);
  const auto positions = batch.position_ids.values<int32_t>();
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  Check(last < options_.max_position_embeddings, kModel, "a sequence reaches position ", last,
        " but the model's max_position_embeddings is ", options_.max_position_embeddings);
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

DisentangledEncoder::DisentangledEncoder(NamedSettings settings, const DisentangledOptions& options)
    : Encoder(kModel, std::move(settings)), options_(options) {
  const nn::PostNormLayerOptions& o = options.layer.layer;
  embeddings_ = Register<DisentangledEmbeddings>("embeddings", options);
  if (options.layer.has_distances) {
    distances_ =
        RegisterParameter("encoder.rel_embeddings.weight", {2 * options.span(), o.hidden_size},
                          Init::Normal(o.initializer_range));
  }
  if (options.norms_distances) {
    norm_ = Register<nn::LayerNorm>("encoder.LayerNorm", o.hidden_size, o.layer_norm_eps);
    if (!options.layer.has_distances) {  // nothing reads it
      norm_->weight.SetRequiresGrad(false);
      norm_->bias.SetRequiresGrad(false);
    }
  }
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_.push_back(
        Register<DisentangledLayer>(absl::StrCat("encoder.layer.", i), options.layer));
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
  return [this, layer = layers_[i], norm = norm_, known = std::make_shared<Distances>(),
          site = absl::StrCat("encoder.layer.", i)](
             const Tensor& hidden_states, const nn::ForwardContext& context, bool first_only) {
    if (!known->rows.defined() && layer->has_distances()) {
      *known = DistancesFor(context.sequences.max_seqlen);
    }
    return layer->Forward(hidden_states, context, *known, first_only, site);
  };
}

}  // namespace lathe
