#include "lathe/models/sequence_classifier.h"

#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"

namespace lathe {

NamedSettings SequenceClassifier::OwnSettings() const {
  NamedSettings settings;
  for (const auto& [key, value] : config_.json().items()) {
    if (key != "_name_or_path" && key != "transformers_version" && key != "dtype" &&
        key != "torch_dtype") {
      settings.emplace_back("config " + key, DumpJson(value));
    }
  }
  const LossOptions& loss = loss_options_;
  if (loss.class_weights.defined())
    settings.emplace_back("class_weights", DumpJson(nlohmann::json(loss.ClassWeights())));
  if (loss.label_smoothing != 0) {
    settings.emplace_back("label_smoothing_factor", DumpJson(nlohmann::json(loss.label_smoothing)));
  }
  if (loss.focal_gamma != 0)
    settings.emplace_back("focal_gamma", DumpJson(nlohmann::json(loss.focal_gamma)));
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
