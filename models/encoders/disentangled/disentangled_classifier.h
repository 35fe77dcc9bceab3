// What the versions of DeBERTa share: a classifier on a DisentangledEncoder, and the declaration of
// a family.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/disentangled/disentangled_options.h"

namespace lathe {

// Reads a version's options with a reader for its defaults.
using ReadDisentangled =
    std::function<DisentangledOptions(const PretrainedConfig& config, const ConfigReader& reader)>;

// Returns the declaration of a version of DeBERTa: the encoder under DeBERTa's pooler, with the
// loss of SoftClassificationLoss. `defaults` are kept by reference.
//
//   const ArchitectureRegistration kMine(DisentangledArchitecture(
//       "deberta-mine", "MineForSequenceClassification", Defaults(), ReadDisentangledOptions));
Architecture DisentangledArchitecture(const std::string& model_type, const std::string& class_name,
                                      const nlohmann::json& defaults, ReadDisentangled read);

}  // namespace lathe
