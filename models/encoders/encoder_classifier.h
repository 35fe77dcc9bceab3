// EncoderClassifier: an encoder under a head that reads each sequence's first token, or the mean of
// all its tokens:
//
//   logits = output(dropout(norm(activation(dense(input_dropout(pooled))))))
//
// Most heads have no norm.
//
// A family makes one of its encoder and its head's options, as its Architecture::make.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lathe/models/classification_loss.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/sequence_classifier.h"
#include "lathe/nn/layers.h"

namespace lathe {

// What makes one row of a sequence's rows.
enum class Pooling : uint8_t {
  kFirstToken,
  kMean,        // the mean of the hidden states
  kMeanLogits,  // each token has logits, and their mean counts
};

struct ClassifierHeadOptions {
  std::string encoder = "";                    // the encoder's path; empty: the model's name
  std::string dense = "classifier.dense";      // the paths of the two linear layers
  std::string output = "classifier.out_proj";  // [num_labels, H]
  bool has_dense = true;  // false: dropout and `output` follow the input dropout
  ActivationKind activation = ActivationKind::kTanh;
  double input_dropout = 0, dropout = 0;
  double initializer_range = 0.02;
  LossFunction loss = ClassificationLoss;
  std::optional<Init> dense_init = {}, output_init = {};  // replace initializer_range
  bool dense_has_bias = true;
  std::string norm = "";  // the path of a norm behind the activation; empty: there is none
  double norm_eps = 1e-5;
  bool norm_has_bias = true;
  Pooling pooling = Pooling::kFirstToken;
};

class EncoderClassifier : public SequenceClassifier {
 public:
  // `name` is the tag of errors, and the encoder's path unless the head's options have one. `seed`
  // is that of the dropout masks.
  EncoderClassifier(PretrainedConfig config, uint64_t seed, const char* name,
                    std::shared_ptr<Encoder> encoder, const ClassifierHeadOptions& head);

  // If the head reads first tokens, throws if a sequence doesn't start at position 0, as with
  // padding on the left (Batch::FromPadded). Transformers would classify what it computes for the
  // padding.
  SequenceClassifierOutput Forward(const Batch& batch, const ForwardOptions& options = {}) override;
  Tensor Encode(const Batch& batch) override;
  int64_t max_length() const override { return encoder_->max_length(); }

 private:
  EncoderForwardOptions EncoderOptions(bool output_hidden_states) const;
  // Returns the row of each sequence that a head reads that isn't of kMeanLogits: [B, H].
  Tensor Pooled(const EncoderOutput& encoded, const nn::ForwardContext& context) const;
  NamedSettings OwnSettings() const override;
  // [N, H] -> [N, num_labels], for the rows of first tokens or of all tokens.
  Tensor Head(const Tensor& pooled, const nn::ForwardContext& context, bool first_tokens) const;

  uint64_t seed_;
  LossFunction loss_;
  const char* name_;
  Pooling pooling_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<nn::Dropout> input_dropout_, dropout_;
  std::shared_ptr<nn::Linear> dense_;  // null if there is none
  std::shared_ptr<nn::Linear> output_;
  std::shared_ptr<nn::LayerNorm> norm_;  // null if there is none
};

}  // namespace lathe
