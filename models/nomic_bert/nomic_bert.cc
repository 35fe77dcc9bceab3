// NomicBERT (Nussbaum et al. 2024), computed like Transformers' NomicBertForSequenceClassification:
// BERT with rotary positions, gated feed-forward blocks and no biases but those of norms and head.
// Parameters have the names of checkpoints, which Transformers translates to its own when it loads
// and saves.
#include <absl/strings/str_cat.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/config/rope_parameters.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* values = new nlohmann::json(BertLikeConfigDefaults());
    values->erase("is_decoder");
    values->erase("position_embedding_type");
    values->update({{"attention_probs_dropout_prob", 0.0},
                    {"head_dim", nullptr},
                    {"hidden_act", "silu"},
                    {"hidden_dropout_prob", 0.0},
                    {"max_position_embeddings", 2048},
                    {"rope_parameters", nullptr},
                    {"rope_scaling", nullptr},
                    {"rope_theta", nullptr},
                    {"vocab_size", 30528}});
    return values;
  }();
  return *defaults;
}

PostNormEncoderOptions ReadOptions(const PretrainedConfig& config) {
  const ConfigReader reader(config, Defaults());
  PostNormEncoderOptions options = ReadPostNormEncoderOptions(reader);
  CheckRotaryHeads(reader, "hidden_size", "num_attention_heads");
  const int64_t head_dim = options.layer.hidden_size / options.layer.num_attention_heads;
  if (!reader.IsNull("head_dim") && reader.Int("head_dim") != head_dim) {
    throw WrongConfig(
        config.path(), {"head_dim", "hidden_size", "num_attention_heads"},
        absl::StrCat("\"head_dim\" is ", reader.Int("head_dim"),
                     ", but \"hidden_size\" and \"num_attention_heads\" make heads of ", head_dim,
                     " columns"),
        "correct one of the three");
  }
  options.layer.has_biases = false;
  options.layer.names = {.self_attention = "attn",
                         .qkv = "Wqkv",
                         .attention_output = "attn.out_proj",
                         .attention_norm = "norm1",
                         .intermediate = "mlp.fc11",
                         .output = "mlp.fc2",
                         .gate = "mlp.fc12",
                         .output_norm = "norm2"};
  options.layers = "encoder.layers";
  options.embeddings_path = "";
  options.embeddings.word = "embeddings.word_embeddings";
  options.embeddings.types = "embeddings.token_type_embeddings";
  options.embeddings.norm = "emb_ln";
  options.embeddings.has_positions = false;
  options.rotary.frequencies = ReadRotaryFrequencies(config, head_dim, {.default_theta = 1000});
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const char* const rate =
      config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob";
  return std::make_shared<EncoderClassifier>(
      config, seed, "nomic_bert",
      std::make_shared<PostNormEncoder>("nomic_bert", reader.Settings(), ReadOptions(config)),
      ClassifierHeadOptions{.dense = "nomic_bert.pooler.dense",
                            .output = "classifier",
                            .activation = ActivationKind::kTanh,
                            .dropout = reader.Probability(rate),
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PostNormEncoderMemory(model, ReadOptions(model.config()), options);
}

const ArchitectureRegistration kNomicBert({
    .model_type = "nomic_bert",
    .class_name = "NomicBertForSequenceClassification",
    .make = Make,
    // Checkpoints of texts' embeddings have no pooler.
    .names = {.base_prefix = "nomic_bert.", .head_prefixes = {"classifier.", "nomic_bert.pooler."}},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .tokenizer_model_type = "bert",
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
