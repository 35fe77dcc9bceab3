// RoFormer (Su et al. 2021), computed like Transformers' RoFormerForSequenceClassification: BERT's
// encoder, whose attention turns queries and keys by their positions, and ELECTRA's head. The table
// of sines and cosines is a part of its checkpoints.
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
    values->erase("classifier_dropout");
    values->erase("position_embedding_type");
    values->update({{"embedding_size", nullptr},
                    {"max_position_embeddings", 1536},
                    {"rotary_value", false},
                    {"vocab_size", 50000}});
    return values;
  }();
  return *defaults;
}

PostNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PostNormEncoderOptions options = ReadPostNormEncoderOptions(reader);
  CheckRotaryHeads(reader, "hidden_size", "num_attention_heads");
  options.embeddings.has_positions = false;
  options.rotary = {.pairs = RotaryPairs::kNeighbours,
                    .turns_values = reader.Bool("rotary_value"),
                    .table = "encoder.embed_positions.weight"};
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const double dropout = reader.Probability("hidden_dropout_prob");
  return std::make_shared<EncoderClassifier>(
      config, seed, "roformer",
      std::make_shared<PostNormEncoder>("roformer", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{.activation = reader.Activation("hidden_act"),
                            .input_dropout = dropout,
                            .dropout = dropout,
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PostNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                               options);
}

const ArchitectureRegistration kRoFormer({
    .model_type = "roformer",
    .class_name = "RoFormerForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "roformer."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
