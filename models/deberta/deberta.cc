// DeBERTa (He et al. 2020), computed like Transformers' DebertaForSequenceClassification.
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/disentangled_classifier.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json(DisentangledConfigDefaults());
  return *defaults;
}

DisentangledOptions ReadOptions(const PretrainedConfig& config) {
  DisentangledOptions options = ReadDisentangledOptions(config, ConfigReader(config, Defaults()));
  options.layer.fused_projections = true;
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  return MakeDisentangledClassifier(config, seed, ConfigReader(config, Defaults()),
                                    ReadOptions(config));
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return DisentangledMemory(model, ReadOptions(model.config()), options);
}

const ArchitectureRegistration kDeberta({
    .model_type = "deberta",
    .class_name = "DebertaForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "deberta.",
              .head_prefixes = {"pooler.", "classifier."},
              // Checkpoints may hold positions that "position_biased_input" leaves out.
              .buffers = {"position_ids", "position_embeddings.weight"}},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "cls_dropout",
                     "pooler_dropout"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
