#include "lathe/models/bert/bert.h"

#include <absl/strings/str_cat.h>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/cast.h"
#include "lathe/models/classification_loss.h"
#include "lathe/models/config_reader.h"
#include "lathe/models/forward_context.h"
#include "lathe/models/rows.h"

namespace lathe {
const nlohmann::json& BertConfigDefaults() {
  static const auto* defaults = new nlohmann::json{{"attention_probs_dropout_prob", 0.1},
                                                   {"classifier_dropout", nullptr},
                                                   {"hidden_act", "gelu"},
                                                   {"hidden_dropout_prob", 0.1},
                                                   {"hidden_size", 768},
                                                   {"initializer_range", 0.02},
                                                   {"intermediate_size", 3072},
                                                   {"is_decoder", false},
                                                   {"layer_norm_eps", 1e-12},
                                                   {"max_position_embeddings", 512},
                                                   {"num_attention_heads", 12},
                                                   {"num_hidden_layers", 12},
                                                   {"pad_token_id", 0},
                                                   {"position_embedding_type", "absolute"},
                                                   {"type_vocab_size", 2},
                                                   {"vocab_size", 30522}};
  return *defaults;
}

BertOptions BertOptions::FromConfig(const PretrainedConfig& config) {
  constexpr int64_t kMost = 1 << 30;
  const ConfigReader reader(config, BertConfigDefaults());
  BertOptions options;
  nn::PostNormLayerOptions& o = options.layer;
  o.hidden_size = reader.Int("hidden_size", 1, 32768);
  o.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  o.intermediate_size = reader.Int("intermediate_size", 1, kMost);
  o.hidden_act = reader.Activation("hidden_act");
  o.hidden_dropout_prob = reader.Probability("hidden_dropout_prob");
  o.attention_probs_dropout_prob = reader.Probability("attention_probs_dropout_prob");
  o.layer_norm_eps = reader.NotNegative("layer_norm_eps");
  o.initializer_range = reader.NotNegative("initializer_range");
  NormedEmbeddingsOptions& e = options.embeddings;
  e.vocab_size = reader.Int("vocab_size", 1, kMost);
  e.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMost);
  e.type_vocab_size = reader.Int("type_vocab_size", 1, kMost);
  options.num_hidden_layers = reader.Int("num_hidden_layers", 1, 1024);
  if (o.hidden_size % o.num_attention_heads != 0) {
    throw InvalidArgument(
        absl::StrCat(config.path(), ": \"hidden_size\" ", o.hidden_size,
                     " is not a multiple of \"num_attention_heads\" ", o.num_attention_heads),
        "correct one of the two");
  }
  const std::string positions = reader.String("position_embedding_type");
  if (positions != "absolute") {
    throw InvalidArgument(absl::StrCat(config.path(), ": \"position_embedding_type\" \"", positions,
                                       "\" is not supported; supported: absolute"),
                          "use a model with absolute positions");
  }
  if (reader.Bool("is_decoder")) {
    throw InvalidArgument(
        absl::StrCat(config.path(), ": \"is_decoder\" is true; Lathe has encoders only"),
        "use an encoder's model");
  }
  e.hidden_size = o.hidden_size;
  e.pad_token_id = reader.Int("pad_token_id");
  e.initializer_range = o.initializer_range;
  e.layer_norm_eps = o.layer_norm_eps;
  e.hidden_dropout_prob = o.hidden_dropout_prob;
  return options;
}

BertModel::BertModel(const PretrainedConfig& config, bool pooler)
    : settings_(ConfigReader(config, BertConfigDefaults()).Settings()),
      options_(BertOptions::FromConfig(config)) {
  const nn::PostNormLayerOptions& layer = options_.layer;
  embeddings_ = Register<NormedEmbeddings>("embeddings", options_.embeddings, "bert");
  for (int64_t i = 0; i < options_.num_hidden_layers; ++i) {
    const std::string path = absl::StrCat("encoder.layer.", i);
    layers_.push_back(Register<nn::PostNormLayer>(path, layer, path));
  }
  if (pooler) {
    pooler_ = Register<nn::Linear>("pooler.dense", layer.hidden_size, layer.hidden_size,
                                   Init::Normal(layer.initializer_range), ActivationKind::kTanh);
  }
}

nn::ForwardContext BertModel::MakeContext(const Batch& batch,
                                          const BertForwardOptions& options) const {
  const int64_t rows = RowsFor(batch.num_tokens(), compute_dtype(), device());
  const int64_t step = batch.step >= 0 ? batch.step : own_step_;
  nn::ForwardContext context =
      MakeForwardContext(batch, rows, device(), static_cast<uint32_t>(step));
  context.training = options.training;
  context.seed = options.seed;
  return context;
}

BertOutput BertModel::Forward(const Batch& batch, const BertForwardOptions& options) const {
  Check(batch.size() >= 1, "bert", "the batch is empty");
  return Forward(batch, MakeContext(batch, options), options);
}

BertOutput BertModel::Forward(const Batch& batch, const nn::ForwardContext& context,
                              const BertForwardOptions& options) const {
  if (options.training && batch.step < 0) ++own_step_;
  BertOutput out;
  Tensor hidden_states = embeddings_->Forward(batch, context);
  const int64_t rows = batch.num_tokens();
  const bool shortcut = options.first_tokens_only && !options.output_hidden_states;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (options.output_hidden_states) out.hidden_states.push_back(VisibleRows(hidden_states, rows));
    const auto layer = [layer = layers_[i], context,
                        first_only = shortcut && i + 1 == layers_.size()](const Tensor& x) {
      return layer->Forward(x, context, first_only);
    };
    hidden_states = options.training && gradient_checkpointing() ? Checkpoint(layer, hidden_states)
                                                                 : layer(hidden_states);
  }
  if (shortcut) {
    out.first_tokens = Cast(hidden_states, DType::kF32);
  } else {
    const Tensor all = Cast(hidden_states, DType::kF32);
    out.last_hidden_state = VisibleRows(all, rows);
    // FirstTokens reads all rows. Recorded work is repeated for batches with more tokens, and with
    // surplus sequences.
    out.first_tokens = nn::FirstTokens(all, context.sequences.cu_seqlens);
  }
  if (options.output_hidden_states) out.hidden_states.push_back(out.last_hidden_state);
  if (pooler_ != nullptr) out.pooled = pooler_->Forward(out.first_tokens);
  return out;
}

BertForSequenceClassification::BertForSequenceClassification(PretrainedConfig config, uint64_t seed)
    : SequenceClassifier(std::move(config)), seed_(seed) {
  bert_ = Register<BertModel>("bert", config_);
  const char* const rate =
      config_.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob";
  const double p = ConfigReader(config_, BertConfigDefaults()).Probability(rate);
  dropout_ = Register<nn::Dropout>("dropout", p, "classifier");
  classifier_ = Register<nn::Linear>("classifier", bert_->hidden_size(), config_.num_labels(),
                                     Init::Normal(bert_->options().layer.initializer_range));
}

NamedSettings BertForSequenceClassification::OwnSettings() const {
  auto settings = SequenceClassifier::OwnSettings();
  settings.emplace_back("seed", std::to_string(seed_));
  return settings;
}

SequenceClassifierOutput BertForSequenceClassification::Forward(const Batch& batch,
                                                                const ForwardOptions& options) {
  BertForwardOptions bert_options;
  bert_options.output_hidden_states = options.output_hidden_states;
  bert_options.first_tokens_only = true;
  bert_options.training = training();
  bert_options.seed = seed_;
  Check(batch.size() >= 1, "bert", "the batch is empty");
  CheckFirstColumns(batch, "bert");
  const nn::ForwardContext context = bert_->MakeContext(batch, bert_options);
  BertOutput encoded = bert_->Forward(batch, context, bert_options);
  SequenceClassifierOutput out;
  out.logits =
      classifier_->Forward(dropout_->Forward(encoded.pooled, context, /*first_tokens=*/true));
  out.hidden_states = std::move(encoded.hidden_states);
  if (batch.labels.defined()) {
    out.loss = ClassificationLoss(out.logits, batch, config_);
  }
  return out;
}

}  // namespace lathe
