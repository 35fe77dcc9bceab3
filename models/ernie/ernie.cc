// ERNIE (Sun et al. 2019; versions 1 to 3), computed like Transformers'
// ErnieForSequenceClassification: BERT, whose embeddings may have a table of task types, too. Every
// token has task 0, so row 0 alone is added and trained.
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
    values->update({{"task_type_vocab_size", 3}, {"use_task_id", false}});
    return values;
  }();
  return *defaults;
}

PostNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PostNormEncoderOptions options = ReadPostNormEncoderOptions(reader);
  if (reader.Bool("use_task_id")) {
    options.embeddings.task_type_vocab_size = reader.Int("task_type_vocab_size", 1, 1 << 30);
  }
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, "ernie",
      std::make_shared<PostNormEncoder>("ernie", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{
          .dense = "ernie.pooler.dense",
          .output = "classifier",
          .activation = ActivationKind::kTanh,
          .dropout = reader.Probability(config.has("classifier_dropout") ? "classifier_dropout"
                                                                         : "hidden_dropout_prob"),
          .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PostNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                               options);
}

const ArchitectureRegistration kErnie({
    .model_type = "ernie",
    .class_name = "ErnieForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "ernie."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .tokenizer_model_type = "bert",
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
