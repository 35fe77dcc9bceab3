// XLM-RoBERTa-XL (Goyal et al. 2021), computed like Transformers'
// XLMRobertaXLForSequenceClassification: RoBERTa with layers that normalise first. The embeddings
// have no norm, and the feed-forward block has no dropout.
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/pre_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* values = new nlohmann::json(BertLikeConfigDefaults());
    values->update({{"hidden_size", 2560},
                    {"intermediate_size", 10240},
                    {"layer_norm_eps", 1e-5},
                    {"max_position_embeddings", 514},
                    {"num_attention_heads", 32},
                    {"num_hidden_layers", 36},
                    {"pad_token_id", 1},
                    {"type_vocab_size", 1},
                    {"vocab_size", 250880}});
    return values;
  }();
  return *defaults;
}

PreNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PreNormEncoderOptions options = {ReadPostNormEncoderOptions(reader)};
  options.embeddings.first_position = ReadFirstPosition(reader);
  options.embeddings.has_norm = false;
  options.layer.drops_output = false;
  options.layer.names.attention_norm = "attention.self_attn_layer_norm";
  options.layer.names.output_norm = "LayerNorm";
  options.final_norm = "encoder.LayerNorm";
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const double dropout = reader.Probability(
      config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob");
  return std::make_shared<EncoderClassifier>(
      config, seed, "roberta",
      std::make_shared<PreNormEncoder>("roberta", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{.activation = ActivationKind::kTanh,
                            .input_dropout = dropout,
                            .dropout = dropout,
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PreNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                              options);
}

const ArchitectureRegistration kXlmRobertaXl({
    .model_type = "xlm-roberta-xl",
    .class_name = "XLMRobertaXLForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "roberta."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .tokenizer_model_type = "xlm-roberta",
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
