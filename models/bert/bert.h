// BERT (Devlin et al. 2018), computed like Transformers' BertModel and
// BertForSequenceClassification.
//
//   BertModel bert(config);  // parameters "embeddings...", "encoder...", "pooler..."
//   BertOutput out = bert.Forward(batch, {});
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {

// Returns the keys of config.json that BERT reads, with their defaults.
const nlohmann::json& BertConfigDefaults();

// All outputs are float32, whatever type the model computes in.
struct BertOutput : EncoderOutput {
  Tensor pooled;  // [B, H]: tanh(pooler(first_tokens)); undefined without a pooler
};

using BertForwardOptions = EncoderForwardOptions;

class BertModel : public PostNormEncoder {
 public:
  // Throws as ReadPostNormEncoderOptions does. `pooler` adds pooler.dense.
  explicit BertModel(const PretrainedConfig& config, bool pooler = true);

  BertOutput Forward(const Batch& batch, const BertForwardOptions& options) const;

 private:
  std::shared_ptr<nn::Linear> pooler_;
};

class BertForSequenceClassification : public EncoderClassifier {
 public:
  explicit BertForSequenceClassification(const PretrainedConfig& config, uint64_t seed = 42);
};

}  // namespace lathe
