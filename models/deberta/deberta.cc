// DeBERTa (He et al. 2020), computed like Transformers' DebertaForSequenceClassification.
#include <nlohmann/json.hpp>

#include "lathe/models/encoders/disentangled/disentangled_classifier.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json(DisentangledConfigDefaults());
  return *defaults;
}

DisentangledOptions ReadOptions(const PretrainedConfig& config, const ConfigReader& reader) {
  DisentangledOptions options = ReadDisentangledOptions(config, reader);
  options.layer.fused_projections = true;
  return options;
}

const ArchitectureRegistration kDeberta(DisentangledArchitecture("deberta",
                                                                 "DebertaForSequenceClassification",
                                                                 Defaults(), ReadOptions));

}  // namespace
}  // namespace lathe
