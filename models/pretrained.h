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

#include "lathe/data/datasets/batch.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/models/config.h"
#include "lathe/nn/module.h"

namespace lathe {

// The result of a load. Names are parameter paths.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> fresh_head;  // parameters of the head that the file lacks: expected
  std::vector<std::string> missing;     // other parameters that the file lacks
  std::vector<std::string>
      unused_pretraining;               // pre-training heads and buffers in the file: expected
  std::vector<std::string> unexpected;  // other tensors in the file
  std::vector<std::string>
      mismatched;               // "name: file has [3, 8], model [2, 8]", fresh values instead
  std::string Summary() const;  // a few lines for people; empty if every parameter was found
};

struct LoadOptions {
  std::vector<std::string> head_prefixes = {"classifier."};
  bool ignore_mismatched_sizes = false;
  uint64_t seed = 42;  // seed of fresh values
};

// Fills `module` from the directory's safetensors. Old names (gamma, beta) are renamed. If no
// tensor's name starts with `base_prefix` ("bert."), the file holds a bare encoder, whose names get
// the prefix. Missing parameters get fresh values; missing ones outside the head are reported.
// Values are read straight into the module's arena.
LoadReport LoadWeights(Module& module, const std::string& dir, const std::string& base_prefix,
                       const LoadOptions& options = {});

// Writes model.safetensors (all parameters by path) atomically.
void SaveWeights(const Module& module, const std::string& dir);

struct SequenceClassifierOutput {
  Tensor loss;                        // [] f32; undefined without labels
  Tensor logits;                      // [B, num_labels] f32
  std::vector<Tensor> hidden_states;  // [T, H] each, if asked for; [0] enters the first layer
};

struct ForwardOptions {
  bool output_hidden_states = false;
};

class SequenceClassifier : public Module {
 public:
  virtual SequenceClassifierOutput Forward(const Batch& batch,
                                           const ForwardOptions& options = {}) = 0;
  // Writes config.json (with problem_type as decided) and model.safetensors.
  void SavePretrained(const std::string& dir) const;
  PretrainedConfig& config() { return config_; }
  const PretrainedConfig& config() const { return config_; }
  const LoadReport& load_report() const { return load_report_; }
  void set_load_report(LoadReport report) { load_report_ = std::move(report); }
  // The length of the longest sequence that the position table allows.
  virtual int64_t max_length() const = 0;

 protected:
  explicit SequenceClassifier(PretrainedConfig config) : config_(std::move(config)) {}
  // The configuration's keys, except those that say where it came from and how it is stored.
  NamedSettings OwnSettings() const override;
  PretrainedConfig config_;
  LoadReport load_report_;
};

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

// Returns the model_types that Lathe has.
std::vector<std::string> SupportedModelTypes();

}  // namespace lathe
