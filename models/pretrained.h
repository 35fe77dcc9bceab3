// Pretrained models: reads and writes directories in Transformers' layout.
//
//   auto model = AutoModelForSequenceClassification::FromPretrained(dir, {.num_labels = 2});
//   SequenceClassifierOutput out = model->Forward(batch);
//   model->SavePretrained(out_dir);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
};

struct AutoConfig {
  static PretrainedConfig FromPretrained(const std::string& dir) {
    return PretrainedConfig::FromPretrained(dir);
  }
};

struct AutoModelForSequenceClassification {
  // Throws if Lathe doesn't have the model_type; the error lists those that it has.
  static std::shared_ptr<SequenceClassifier> FromPretrained(
      const std::string& dir, const FromPretrainedOptions& options = {});
  // Makes a model with fresh weights.
  static std::shared_ptr<SequenceClassifier> FromConfig(const PretrainedConfig& config,
                                                        const FromPretrainedOptions& options = {});
  // Makes a model whose parameters have shapes but no values, and take no memory.
  static std::shared_ptr<SequenceClassifier> WithoutValues(
      const PretrainedConfig& config, const FromPretrainedOptions& options = {});
};

struct AutoTokenizer {
  static std::shared_ptr<Tokenizer> FromPretrained(const std::string& dir);
};

// Returns the keys that a model of this config's type reads, whether the config has them or not.
// Throws for a type that Lathe doesn't have.
std::vector<std::string> KnownConfigKeys(const PretrainedConfig& config);

}  // namespace lathe
