// RemBERT (Chung et al. 2020), computed like Transformers' RemBertForSequenceClassification: BERT
// with narrower input embeddings, which a linear layer widens in any case.
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_probs_dropout_prob", 0.0},
                                                   {"classifier_dropout_prob", 0.1},
                                                   {"hidden_act", "gelu"},
                                                   {"hidden_dropout_prob", 0.0},
                                                   {"hidden_size", 1152},
                                                   {"initializer_range", 0.02},
                                                   {"input_embedding_size", 256},
                                                   {"intermediate_size", 4608},
                                                   {"is_decoder", false},
                                                   {"layer_norm_eps", 1e-12},
                                                   {"max_position_embeddings", 512},
                                                   {"num_attention_heads", 18},
                                                   {"num_hidden_layers", 32},
                                                   {"pad_token_id", 0},
                                                   {"type_vocab_size", 2},
                                                   {"vocab_size", 250300}};
  return *defaults;
}

PostNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PostNormEncoderOptions options = ReadPostNormEncoderOptions(reader);
  options.embeddings.hidden_size = reader.Int("input_embedding_size", 1, 32768);
  options.projection = "encoder.embedding_hidden_mapping_in";
  options.always_projects = true;
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, "rembert",
      std::make_shared<PostNormEncoder>("rembert", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{.dense = "rembert.pooler.dense",
                            .output = "classifier",
                            .activation = ActivationKind::kTanh,
                            .dropout = reader.Probability("classifier_dropout_prob"),
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PostNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                               options);
}

const ArchitectureRegistration kRemBert({
    .model_type = "rembert",
    .class_name = "RemBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "rembert."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob",
                     "classifier_dropout_prob"},
    .tokenizer = TokenizerFamily{.tokenizer_class = "RemBertTokenizer",
                                 .kind = TokenizerFamily::kSentencePiece,
                                 .unk = "<unk>",
                                 .pad = "<pad>",
                                 .normalizer = LowercaseIfConfigured,
                                 .ids = {.first_tokens = {}, .offset = 0, .unk_id = 1}},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
