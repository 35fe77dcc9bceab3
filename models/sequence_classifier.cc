#include "lathe/models/sequence_classifier.h"

namespace lathe {

NamedSettings SequenceClassifier::OwnSettings() const {
  NamedSettings settings;
  for (const auto& [key, value] : config_.json().items()) {
    if (key != "_name_or_path" && key != "transformers_version" && key != "dtype" &&
        key != "torch_dtype") {
      settings.emplace_back("config " + key, value.dump());
    }
  }
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
