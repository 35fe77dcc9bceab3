// BERT (Devlin et al. 2018), computed like Transformers' BertModel and
// BertForSequenceClassification.
//
//   BertModel bert(config);  // parameters "embeddings...", "encoder...", "pooler..."
//   BertOutput out = bert.Forward(batch, {});
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/models/normed_embeddings.h"
#include "lathe/models/sequence_classifier.h"
#include "lathe/nn/post_norm_layer.h"

namespace lathe {

// The keys of config.json that BERT reads, with their defaults.
const nlohmann::json& BertConfigDefaults();

// A BERT's shape and rates.
struct BertOptions {
  // Throws if the config has values that make no model, or a variant that Lathe doesn't have.
  static BertOptions FromConfig(const PretrainedConfig& config);

  nn::PostNormLayerOptions layer;
  NormedEmbeddingsOptions embeddings;
  int64_t num_hidden_layers = 0;
};

// All outputs are float32, whatever type the model computes in.
struct BertOutput {
  Tensor last_hidden_state;  // [T, H]; undefined if only first tokens were computed
  Tensor first_tokens;       // [B, H]: the last layer's rows of the first tokens
  Tensor pooled;             // [B, H]: tanh(pooler(first_tokens)); undefined without a pooler
  std::vector<Tensor> hidden_states;  // [T, H] each, if asked for; [0] enters the first layer
};

struct BertForwardOptions {
  bool output_hidden_states = false;
  // Computes the last layer for the first tokens alone. This is less work, and exact if the caller
  // reads nothing else. Has no effect together with output_hidden_states.
  bool first_tokens_only = false;
  bool training = false;
  uint64_t seed = 42;  // seed of the dropout masks
};

class BertModel : public Module {
 public:
  // Throws as BertOptions::FromConfig does. `pooler` adds pooler.dense.
  explicit BertModel(const PretrainedConfig& config, bool pooler = true);

  BertOutput Forward(const Batch& batch, const BertForwardOptions& options) const;
  // The same, with the context that MakeContext returns for these arguments.
  BertOutput Forward(const Batch& batch, const nn::ForwardContext& context,
                     const BertForwardOptions& options) const;
  // Returns the context that the layers of a forward pass over `batch` share. Heads that drop out
  // need it, too. It may have more rows than the batch has tokens; the tokens' rows come first.
  nn::ForwardContext MakeContext(const Batch& batch, const BertForwardOptions& options) const;

  const BertOptions& options() const { return options_; }
  int64_t hidden_size() const { return options_.layer.hidden_size; }
  int64_t max_length() const { return options_.embeddings.max_position_embeddings; }

 private:
  // The keys of the configuration that the model reads, with their values as they are there.
  NamedSettings OwnSettings() const override { return settings_; }

  NamedSettings settings_;
  BertOptions options_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::vector<std::shared_ptr<nn::PostNormLayer>> layers_;
  std::shared_ptr<nn::Linear> pooler_;
  mutable int64_t own_step_ = 0;  // counts training passes over batches that don't say their step
};

class BertForSequenceClassification : public SequenceClassifier {
 public:
  explicit BertForSequenceClassification(PretrainedConfig config, uint64_t seed = 42);
  // Throws if a sequence doesn't start at position 0, as with padding on the left
  // (Batch::FromPadded). Transformers would classify what it computes for the padding.
  SequenceClassifierOutput Forward(const Batch& batch, const ForwardOptions& options = {}) override;
  int64_t max_length() const override { return bert_->max_length(); }
  const BertModel& bert() const { return *bert_; }

 private:
  NamedSettings OwnSettings() const override;
  uint64_t seed_;
  std::shared_ptr<BertModel> bert_;
  std::shared_ptr<nn::Dropout> dropout_;
  std::shared_ptr<nn::Linear> classifier_;
};

}  // namespace lathe
