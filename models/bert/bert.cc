#include "lathe/models/bert/bert.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "lathe/core/autograd.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/shape.h"
#include "lathe/models/classification_loss.h"
#include "lathe/models/forward_context.h"

namespace lathe {
namespace {

double Probability(const PretrainedConfig& config, const char* key, double default_value) {
  const double p = config.GetDouble(key, default_value);
  if (!(p >= 0 && p < 1)) {
    throw InvalidArgument(absl::StrCat(config.path(), ": \"", key,
                                       "\" must be at least 0 and less than 1 but is ", p),
                          "correct the value");
  }
  return p;
}

double NotNegative(const PretrainedConfig& config, const char* key, double default_value) {
  const double value = config.GetDouble(key, default_value);
  if (!(value >= 0)) {
    throw InvalidArgument(
        absl::StrCat(config.path(), ": \"", key, "\" must not be negative but is ", value),
        "correct the value");
  }
  return value;
}

// The classifier reads a row's first token. Transformers' classifier reads the row's first column;
// if that is padding, the two would differ silently.
void CheckFirstColumns(const Batch& batch) {
  const int32_t* cu_seqlens = batch.cu_seqlens.data<int32_t>();
  const int32_t* positions = batch.position_ids.data<int32_t>();
  for (int64_t b = 0; b < batch.size(); ++b) {
    if (const int32_t first = positions[cu_seqlens[b]]; first != 0) {
      throw InvalidArgument(absl::StrCat("[bert] sequence ", b, " starts at position ", first,
                                         ", but the classifier reads position 0"),
                            "pad on the right, not on the left");
    }
  }
}

// Returns the number of rows of activations for `tokens` tokens. The surplus rows belong to no
// sequence, so nothing reads them and their gradients are 0. On a GPU full tiles of 128 rows are
// fastest.
int64_t RowsFor(int64_t tokens, DType compute_dtype, Device device) {
  if (!device.is_cpu()) return (tokens + 127) / 128 * 128;
  return FullSpeedRows(tokens, compute_dtype);
}

// Returns the hidden states as a caller sees them: in float32, without surplus rows.
Tensor Visible(const Tensor& hidden_states, int64_t rows) {
  const Tensor x = hidden_states.dim(0) == rows ? hidden_states : SliceRows(hidden_states, 0, rows);
  return Cast(x, DType::kF32);
}

}  // namespace

BertModel::BertModel(const PretrainedConfig& config, bool pooler) {
  for (const std::string& key : ConfigKeys()) {
    if (config.has(key)) settings_.emplace_back("config " + key, config.json()[key].dump());
  }
  nn::EncoderLayerOptions& o = layer_options_;
  constexpr int64_t kMost = 1 << 30;
  o.hidden_size = config.GetInt("hidden_size", 768, 1, 32768);
  o.num_attention_heads = config.GetInt("num_attention_heads", 12, 1, 32768);
  o.intermediate_size = config.GetInt("intermediate_size", 3072, 1, kMost);
  try {
    o.hidden_act = ParseActivation(config.GetString("hidden_act", "gelu"));
  } catch (const Error& error) {
    throw InvalidArgument(absl::StrCat(config.path(), ": \"hidden_act\": ", error.message()),
                          error.hint());
  }
  o.hidden_dropout_prob = Probability(config, "hidden_dropout_prob", 0.1);
  o.attention_probs_dropout_prob = Probability(config, "attention_probs_dropout_prob", 0.1);
  o.layer_norm_eps = NotNegative(config, "layer_norm_eps", 1e-12);
  o.initializer_range = NotNegative(config, "initializer_range", 0.02);
  vocab_size_ = config.GetInt("vocab_size", 30522, 1, kMost);
  max_position_embeddings_ = config.GetInt("max_position_embeddings", 512, 1, kMost);
  type_vocab_size_ = config.GetInt("type_vocab_size", 2, 1, kMost);
  const int64_t num_layers = config.GetInt("num_hidden_layers", 12, 1, 1024);
  if (o.hidden_size % o.num_attention_heads != 0) {
    throw InvalidArgument(
        absl::StrCat(config.path(), ": \"hidden_size\" ", o.hidden_size,
                     " is not a multiple of \"num_attention_heads\" ", o.num_attention_heads),
        "correct one of the two");
  }
  const std::string positions = config.GetString("position_embedding_type", "absolute");
  if (positions != "absolute") {
    throw InvalidArgument(absl::StrCat(config.path(), ": \"position_embedding_type\" \"", positions,
                                       "\" is not supported; supported: absolute"),
                          "use a model with absolute positions");
  }
  if (config.GetBool("is_decoder", false)) {
    throw InvalidArgument(
        absl::StrCat(config.path(), ": \"is_decoder\" is true; Lathe has encoders only"),
        "use an encoder's model");
  }
  const int64_t H = o.hidden_size;
  word_ = Register<nn::Embedding>("embeddings.word_embeddings", vocab_size_, H, o.initializer_range,
                                  config.GetInt("pad_token_id", 0));
  position_ = Register<nn::Embedding>("embeddings.position_embeddings", max_position_embeddings_, H,
                                      o.initializer_range);
  token_type_ = Register<nn::Embedding>("embeddings.token_type_embeddings", type_vocab_size_, H,
                                        o.initializer_range);
  norm_ = Register<nn::LayerNorm>("embeddings.LayerNorm", H, o.layer_norm_eps);
  for (int64_t i = 0; i < num_layers; ++i) {
    const std::string path = absl::StrCat("encoder.layer.", i);
    layers_.push_back(Register<nn::EncoderLayer>(path, o, path));
  }
  if (pooler) {
    pooler_ = Register<nn::Linear>("pooler.dense", H, H, Init::Normal(o.initializer_range),
                                   ActivationKind::kTanh);
  }
}

std::vector<std::string> BertModel::ConfigKeys() {
  return {"attention_probs_dropout_prob",
          "classifier_dropout",
          "hidden_act",
          "hidden_dropout_prob",
          "hidden_size",
          "initializer_range",
          "intermediate_size",
          "is_decoder",
          "layer_norm_eps",
          "max_position_embeddings",
          "num_attention_heads",
          "num_hidden_layers",
          "pad_token_id",
          "position_embedding_type",
          "type_vocab_size",
          "vocab_size"};
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

Tensor BertModel::Embed(const Batch& batch, const nn::ForwardContext& context) const {
  Check(batch.max_seqlen <= max_position_embeddings_, "bert", "a sequence has ", batch.max_seqlen,
        " tokens but the model's max_position_embeddings is ", max_position_embeddings_);
  const auto positions = batch.position_ids.values<int32_t>();
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  Check(last < max_position_embeddings_, "bert", "a sequence reaches position ", last,
        " but the model's max_position_embeddings is ", max_position_embeddings_);
  if (!device().is_cpu()) {  // a device's kernels don't check ids
    CheckEmbeddingIds(batch.input_ids, vocab_size_, 0);
    CheckEmbeddingIds(batch.token_type_ids, type_vocab_size_, 1);
  }
  return EmbeddingLayerNorm({context.input_ids, context.token_type_ids, context.row_positions},
                            {word_->weight, token_type_->weight, position_->weight},
                            {word_->padding_row, -1, -1}, norm_->weight, norm_->bias, norm_->eps,
                            context.Dropout(layer_options_.hidden_dropout_prob, "embeddings"),
                            compute_dtype());
}

BertOutput BertModel::Forward(const Batch& batch, const BertForwardOptions& options) const {
  Check(batch.size() >= 1, "bert", "empty batch");
  return Forward(batch, MakeContext(batch, options), options);
}

BertOutput BertModel::Forward(const Batch& batch, const nn::ForwardContext& context,
                              const BertForwardOptions& options) const {
  if (options.training && batch.step < 0) ++own_step_;
  BertOutput out;
  Tensor hidden_states = Embed(batch, context);
  const int64_t rows = batch.num_tokens();
  const bool shortcut = options.first_tokens_only && !options.output_hidden_states;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (options.output_hidden_states) out.hidden_states.push_back(Visible(hidden_states, rows));
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
    out.last_hidden_state = Visible(all, rows);
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
  const double p = config_.GetOptionalDouble("classifier_dropout").has_value()
                       ? Probability(config_, "classifier_dropout", 0)
                       : Probability(config_, "hidden_dropout_prob", 0.1);
  dropout_ = Register<nn::Dropout>("dropout", p, "classifier");
  classifier_ = Register<nn::Linear>("classifier", bert_->hidden_size(), config_.num_labels(),
                                     Init::Normal(config_.GetDouble("initializer_range", 0.02)));
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
  Check(batch.size() >= 1, "bert", "empty batch");
  CheckFirstColumns(batch);
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
