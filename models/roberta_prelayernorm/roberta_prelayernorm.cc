// RoBERTa-PreLayerNorm, computed like Transformers' RobertaPreLayerNormForSequenceClassification:
// RoBERTa with layers that normalise first. Checkpoints are those of Wettig et al. 2022.
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
    values->update({{"pad_token_id", 1}, {"vocab_size", 50265}});
    return values;
  }();
  return *defaults;
}

PreNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PreNormEncoderOptions options = {ReadPostNormEncoderOptions(reader)};
  options.embeddings.first_position = ReadFirstPosition(reader);
  options.layer.names.attention_norm = "attention.LayerNorm";
  options.layer.names.output_norm = "intermediate.LayerNorm";
  options.final_norm = "LayerNorm";
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const double dropout = reader.Probability(
      config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob");
  return std::make_shared<EncoderClassifier>(
      config, seed, "roberta_prelayernorm",
      std::make_shared<PreNormEncoder>("roberta_prelayernorm", reader.Settings(),
                                       ReadOptions(reader)),
      ClassifierHeadOptions{.activation = ActivationKind::kTanh,
                            .input_dropout = dropout,
                            .dropout = dropout,
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PreNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                              options);
}

const ArchitectureRegistration kRobertaPreLayerNorm({
    .model_type = "roberta-prelayernorm",
    .class_name = "RobertaPreLayerNormForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "roberta_prelayernorm."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .tokenizer_model_type = "roberta",
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
