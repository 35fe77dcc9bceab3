// Architecture: everything that the rest of the program needs to know of a family of models. Each
// family declares itself in its own folder. Code elsewhere names no family, except that
// data/tokenizers/ has the tokenizers of albert, bert and roberta.
//
//   const ArchitectureRegistration kBert({.model_type = "bert",
//                                         .class_name = "BertForSequenceClassification",
//                                         .make = MakeClassifier<BertForSequenceClassification>,
//                                         .names = {.base_prefix = "bert."},
//                                         .config_defaults = {{"hidden_size", 768}}});
//
// The family's Bazel target has `alwayslink = True`, and models/BUILD.bazel lists it in FAMILIES.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/tokenizers/tokenizer_family.h"
#include "lathe/models/config/config.h"
#include "lathe/models/pass_memory.h"
#include "lathe/models/sequence_classifier.h"
#include "lathe/models/weights/load_weights.h"

namespace lathe {

struct Architecture {
  std::string model_type;  // as in config.json, e.g. "bert"
  std::string class_name;  // Transformers' class, written as "architectures" to config.json
  // Makes a classifier whose parameters have no values yet. `seed` is that of its dropout masks.
  std::function<std::shared_ptr<SequenceClassifier>(const PretrainedConfig& config, uint64_t seed)>
      make;
  CheckpointNames names = {};  // the names of tensors in the family's checkpoints
  // The keys of config.json that the family reads, each with its default: a JSON object. The
  // default null leaves a key unset. ConfigReader reads them.
  nlohmann::json config_defaults = nlohmann::json::object();
  std::vector<std::string> dropout_keys = {};  // the keys of config_defaults that are dropout rates
  // If a folder's tokenizer files don't name their class, the tokenizer is that of this model_type.
  // Empty: of the family's own model_type.
  std::string tokenizer_model_type = {};
  // The family's own tokenizer, if data/ lacks it. A checkpoint of any family may name its class.
  std::optional<TokenizerFamily> tokenizer = {};
  // Tells `lathe estimate-memory` what the model's passes take. Without it the command refuses.
  std::function<PassMemory(const SequenceClassifier& model, const MemoryOptions& options)>
      pass_memory = {};
};

// An Architecture::make for a class with the constructor C(PretrainedConfig config, uint64_t seed).
template <typename C>
std::shared_ptr<SequenceClassifier> MakeClassifier(const PretrainedConfig& config, uint64_t seed) {
  return std::make_shared<C>(config, seed);
}

// Adds a family, and keeps it until the program ends. Call it before other threads look families
// up. Throws if the declaration is incomplete, or if the model_type is taken.
void RegisterArchitecture(Architecture architecture);

// Registers a family before main() runs, as a constant beside the family's classes.
struct ArchitectureRegistration {
  explicit ArchitectureRegistration(Architecture architecture) {
    RegisterArchitecture(std::move(architecture));
  }
};

// Returns the family of a model_type, or null if Lathe doesn't have it.
const Architecture* FindArchitecture(const std::string& model_type);

// Returns the config's model_type. If it has none, returns that of the family to which the first of
// its "architectures" belongs, a class such as "BertForMaskedLM" or "BertModel"; else "".
std::string ModelTypeOf(const PretrainedConfig& config);

// Returns the family of the config's ModelTypeOf. Throws if the config has none or Lathe doesn't
// have it; the error lists those that it has.
const Architecture& ArchitectureOf(const PretrainedConfig& config);

// Returns the model_types that Lathe has, sorted.
std::vector<std::string> SupportedModelTypes();

}  // namespace lathe
