// EncoderClassifier: an encoder under a head that reads each sequence's first token:
//
//   logits = output(dropout(activation(dense(input_dropout(first_token)))))
//
// A family makes one of its encoder and its head's options, as its Architecture::make.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/models/classification_loss.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/sequence_classifier.h"
#include "lathe/nn/layers.h"

namespace lathe {

struct ClassifierHeadOptions {
  std::string dense = "classifier.dense";      // the paths of the two linear layers
  std::string output = "classifier.out_proj";  // [num_labels, H]
  bool has_dense = true;  // false: dropout and `output` follow the input dropout
  ActivationKind activation = ActivationKind::kTanh;
  double input_dropout = 0, dropout = 0;
  double initializer_range = 0.02;
  LossFunction loss = ClassificationLoss;
};

class EncoderClassifier : public SequenceClassifier {
 public:
  // Registers the encoder as `name`. `seed` is that of the dropout masks.
  EncoderClassifier(PretrainedConfig config, uint64_t seed, const char* name,
                    std::shared_ptr<Encoder> encoder, const ClassifierHeadOptions& head);

  // Throws if a sequence doesn't start at position 0, as with padding on the left
  // (Batch::FromPadded). Transformers would classify what it computes for the padding.
  SequenceClassifierOutput Forward(const Batch& batch, const ForwardOptions& options = {}) override;
  int64_t max_length() const override { return encoder_->max_length(); }

 private:
  NamedSettings OwnSettings() const override;

  uint64_t seed_;
  LossFunction loss_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<nn::Dropout> input_dropout_, dropout_;
  std::shared_ptr<nn::Linear> dense_;  // null if there is none
  std::shared_ptr<nn::Linear> output_;
};

}  // namespace lathe
