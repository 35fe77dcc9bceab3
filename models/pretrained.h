// Pretrained models: reads and writes directories in Transformers' layout, and fetches models from
// a Hub into the cache of huggingface_hub.
//
//   auto model = AutoModelForSequenceClassification::FromPretrained(
//       "google-bert/bert-base-uncased", {.num_labels = 2});
//   SequenceClassifierOutput out = model->Forward(batch);
//   model->SavePretrained(out_dir);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/hub/hub_settings.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/models/config/config.h"
#include "lathe/models/sequence_classifier.h"

namespace lathe {

struct FromPretrainedOptions {
  std::optional<int64_t> num_labels = {};
  std::vector<std::string> label_names = {};  // implies num_labels
  std::optional<std::string> problem_type = {};
  std::optional<double> dropout = {};           // overrides all dropout rates
  std::optional<PretrainedConfig> config = {};  // FromPretrained uses it instead of the folder's
  bool ignore_mismatched_sizes = false;
  uint64_t seed = 42;
  HubOptions hub = {};  // for a model's name
};

// In all of these `name_or_path` is a folder or the name of a model on a Hub, such as
// "google-bert/bert-base-uncased". A folder of that name wins. See core/hub/resolve_checkpoint.h.

struct AutoConfig {
  static PretrainedConfig FromPretrained(const std::string& name_or_path,
                                         const HubOptions& hub = {});
};

struct AutoModelForSequenceClassification {
  // Throws if Lathe doesn't have the model_type; the error lists those that it has.
  static std::shared_ptr<SequenceClassifier> FromPretrained(
      const std::string& name_or_path, const FromPretrainedOptions& options = {});
  // Makes a model with fresh weights.
  static std::shared_ptr<SequenceClassifier> FromConfig(const PretrainedConfig& config,
                                                        const FromPretrainedOptions& options = {});
  // Makes a model whose parameters have shapes but no values, and take no memory.
  static std::shared_ptr<SequenceClassifier> WithoutValues(
      const PretrainedConfig& config, const FromPretrainedOptions& options = {});
};

struct AutoTokenizer {
  static std::shared_ptr<Tokenizer> FromPretrained(const std::string& name_or_path,
                                                   const HubOptions& hub = {});
};

// Returns the keys that a model of this config's type reads, whether the config has them or not.
// Throws for a type that Lathe doesn't have.
std::vector<std::string> KnownConfigKeys(const PretrainedConfig& config);

}  // namespace lathe
