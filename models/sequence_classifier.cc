#include "lathe/models/sequence_classifier.h"

#include <nlohmann/json.hpp>

namespace lathe {

NamedSettings SequenceClassifier::OwnSettings() const {
  NamedSettings settings;
  for (const auto& [key, value] : config_.json().items()) {
    if (key != "_name_or_path" && key != "transformers_version" && key != "dtype" &&
        key != "torch_dtype") {
      settings.emplace_back("config " + key, value.dump());
    }
  }
  const LossOptions& loss = loss_options_;
  if (loss.class_weights.defined())
    settings.emplace_back("class_weights", nlohmann::json(loss.ClassWeights()).dump());
  if (loss.label_smoothing != 0) {
    settings.emplace_back("label_smoothing_factor", nlohmann::json(loss.label_smoothing).dump());
  }
  if (loss.focal_gamma != 0)
    settings.emplace_back("focal_gamma", nlohmann::json(loss.focal_gamma).dump());
  return settings;
}

void SequenceClassifier::SavePretrained(const std::string& dir) const {
  SaveWeights(*this, dir);
  SaveConfig(dir);
}

void SequenceClassifier::SaveConfig(const std::string& dir) const {
  PretrainedConfig config = config_;
  for (const char* key : {"dtype", "torch_dtype"}) {  // Transformers loads weights in this dtype
    if (config.has(key)) config.json()[key] = "float32";
  }
  config.SavePretrained(dir);
}

}  // namespace lathe
