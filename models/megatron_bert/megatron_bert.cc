// Megatron-BERT (Shoeybi et al. 2019), computed like Transformers'
// MegatronBertForSequenceClassification: BERT with layers that normalise first. The embeddings have
// no norm.
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/pre_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_probs_dropout_prob", 0.1},
                                                   {"hidden_act", "gelu"},
                                                   {"hidden_dropout_prob", 0.1},
                                                   {"hidden_size", 1024},
                                                   {"initializer_range", 0.02},
                                                   {"intermediate_size", 4096},
                                                   {"is_decoder", false},
                                                   {"layer_norm_eps", 1e-12},
                                                   {"max_position_embeddings", 512},
                                                   {"num_attention_heads", 16},
                                                   {"num_hidden_layers", 24},
                                                   {"pad_token_id", 0},
                                                   {"position_embedding_type", "absolute"},
                                                   {"type_vocab_size", 2},
                                                   {"vocab_size", 29056}};
  return *defaults;
}

PreNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PreNormEncoderOptions options = {ReadPostNormEncoderOptions(reader)};
  options.embeddings.has_norm = false;
  options.layer.names.attention_norm = "attention.ln";
  options.layer.names.output_norm = "ln";
  options.final_norm = "encoder.ln";
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, "bert",
      std::make_shared<PreNormEncoder>("bert", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{.dense = "bert.pooler.dense",
                            .output = "classifier",
                            .activation = ActivationKind::kTanh,
                            .dropout = reader.Probability("hidden_dropout_prob"),
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PreNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                              options);
}

const ArchitectureRegistration kMegatronBert({
    .model_type = "megatron-bert",
    .class_name = "MegatronBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "bert."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob"},
    .tokenizer_model_type = "bert",
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
