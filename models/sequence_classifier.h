// SequenceClassifier: a model that gives each sequence of a batch its logits, and the loss if the
// batch has labels.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lathe/data/datasets/batch.h"
#include "lathe/models/classification_loss.h"
#include "lathe/models/config/config.h"
#include "lathe/models/weights/load_weights.h"
#include "lathe/nn/module.h"

namespace lathe {

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
  // Returns what the head reads of each sequence: [B, H] f32, for Batch::encoded. Returns an
  // undefined tensor if no pass could use it instead of computing it again. That is so if a
  // parameter below the head is trained, or dropout is active there in the present mode. It is so,
  // too, if the head reads all tokens.
  virtual Tensor Encode(const Batch& /*batch*/) { return {}; }
  // Writes config.json (with problem_type as decided) and model.safetensors.
  void SavePretrained(const std::string& dir) const;
  // Writes config.json alone, as SavePretrained does.
  void SaveConfig(const std::string& dir) const;
  PretrainedConfig& config() { return config_; }
  const PretrainedConfig& config() const { return config_; }
  // Say how Forward weighs its loss, in training and in evaluation alike. Set them before the first
  // pass, because passes are recorded. They are not saved.
  void set_loss_options(LossOptions options) { loss_options_ = std::move(options); }
  const LossOptions& loss_options() const { return loss_options_; }
  const LoadReport& load_report() const { return load_report_; }
  void set_load_report(LoadReport report) { load_report_ = std::move(report); }
  // Returns the length of the longest sequence that the position table allows.
  virtual int64_t max_length() const = 0;

 protected:
  explicit SequenceClassifier(PretrainedConfig config) : config_(std::move(config)) {}
  // The configuration's keys, except those that say where it came from and how it is stored, and
  // the loss options that are not the default.
  NamedSettings OwnSettings() const override;
  PretrainedConfig config_;
  LoadReport load_report_;
  LossOptions loss_options_;
};

}  // namespace lathe
