// The second and third version of DeBERTa (He et al. 2020 and 2021), computed like Transformers'
// DebertaV2ForSequenceClassification. Far distances share rows, and the rows may have a norm.
#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/disentangled_classifier.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* json = new nlohmann::json(DisentangledConfigDefaults());
    json->update({{"hidden_size", 1536},
                  {"intermediate_size", 6144},
                  {"norm_rel_ebd", "none"},
                  {"num_attention_heads", 24},
                  {"num_hidden_layers", 24},
                  {"position_buckets", -1},
                  {"share_att_key", false},
                  {"vocab_size", 128100}});
    return json;
  }();
  return *defaults;
}

DisentangledOptions ReadOptions(const PretrainedConfig& config) {
  const ConfigReader reader(config, Defaults());
  DisentangledOptions options = ReadDisentangledOptions(config, reader);
  options.layer.shares_projections = reader.Bool("share_att_key");
  const std::string norms = absl::AsciiStrToLower(reader.String("norm_rel_ebd"));
  for (const absl::string_view norm : absl::StrSplit(norms, '|')) {
    if (absl::StripAsciiWhitespace(norm) == "layer_norm") options.norms_distances = true;
  }
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  return MakeDisentangledClassifier(config, seed, ConfigReader(config, Defaults()),
                                    ReadOptions(config));
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return DisentangledMemory(model, ReadOptions(model.config()), options);
}

const ArchitectureRegistration kDebertaV2({
    .model_type = "deberta-v2",
    .class_name = "DebertaV2ForSequenceClassification",
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
