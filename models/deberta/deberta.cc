// DeBERTa (He et al. 2020), computed like Transformers' DebertaForSequenceClassification.
#include <nlohmann/json.hpp>

#include "lathe/models/encoders/disentangled/disentangled_classifier.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* json = new nlohmann::json(DisentangledConfigDefaults());
    json->update({{"talking_head", false}});
    return json;
  }();
  return *defaults;
}

DisentangledOptions ReadOptions(const PretrainedConfig& config, const ConfigReader& reader) {
  DisentangledOptions options = ReadDisentangledOptions(config, reader);
  options.layer.fused_projections = true;
  return options;
}

nlohmann::json NoNormalizer(const nlohmann::json&) { return nlohmann::json(); }

Architecture Declare() {
  Architecture architecture = DisentangledArchitecture(
      "deberta", "DebertaForSequenceClassification", Defaults(), ReadOptions);
  architecture.tokenizer = TokenizerFamily{.tokenizer_class = "DebertaTokenizer",
                                           .kind = TokenizerFamily::kByteLevelBpe,
                                           .token_type_ids = true,
                                           .normalizer = NoNormalizer,
                                           .mask_lstrip = true};
  return architecture;
}

const ArchitectureRegistration kDeberta(Declare());

}  // namespace
}  // namespace lathe
