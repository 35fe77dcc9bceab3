// ELECTRA (Clark et al. 2020), computed like Transformers' ElectraForSequenceClassification. It is
// BERT's encoder, whose embeddings may have fewer columns than its layers, with a head of its own.
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* values = new nlohmann::json(BertLikeConfigDefaults());
    values->update({{"embedding_size", 128},
                    {"hidden_size", 256},
                    {"intermediate_size", 1024},
                    {"num_attention_heads", 4}});
    return values;
  }();
  return *defaults;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const double dropout = reader.Probability(
      config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob");
  return std::make_shared<EncoderClassifier>(
      config, seed, "electra",
      std::make_shared<PostNormEncoder>("electra", reader.Settings(),
                                        ReadPostNormEncoderOptions(reader)),
      ClassifierHeadOptions{.activation = ActivationKind::kGelu,
                            .input_dropout = dropout,
                            .dropout = dropout,
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const ConfigReader reader(model.config(), Defaults());
  return PostNormEncoderMemory(model, ReadPostNormEncoderOptions(reader), options);
}

const ArchitectureRegistration kElectra({
    .model_type = "electra",
    .class_name = "ElectraForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "electra."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .tokenizer = TokenizerFamily{.tokenizer_class = "ElectraTokenizer", .token_type_ids = true},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
