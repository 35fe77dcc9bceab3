#include "lathe/models/encoders/encoder_classifier.h"

#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/models/rows.h"

namespace lathe {

EncoderClassifier::EncoderClassifier(PretrainedConfig config, uint64_t seed, const char* name,
                                     std::shared_ptr<Encoder> encoder,
                                     const ClassifierHeadOptions& head)
    : SequenceClassifier(std::move(config)),
      seed_(seed),
      loss_(head.loss),
      encoder_(std::move(encoder)) {
  RegisterModule(name, encoder_);
  const int64_t H = encoder_->hidden_size();
  const Init init = Init::Normal(head.initializer_range);
  if (head.has_dense) dense_ = Register<nn::Linear>(head.dense, H, H, init, head.activation);
  input_dropout_ = Register<nn::Dropout>("input_dropout", head.input_dropout, "classifier.input");
  dropout_ = Register<nn::Dropout>("dropout", head.dropout, "classifier");
  output_ = Register<nn::Linear>(head.output, H, config_.num_labels(), init);
}

NamedSettings EncoderClassifier::OwnSettings() const {
  auto settings = SequenceClassifier::OwnSettings();
  settings.emplace_back("seed", std::to_string(seed_));
  return settings;
}

SequenceClassifierOutput EncoderClassifier::Forward(const Batch& batch,
                                                    const ForwardOptions& options) {
  const EncoderForwardOptions encoder_options = {
      .output_hidden_states = options.output_hidden_states,
      .first_tokens_only = true,
      .training = training(),
      .seed = seed_};
  Check(batch.size() >= 1, encoder_->model(), "the batch is empty");
  CheckSequencesStartAtZero(batch, encoder_->model());
  const nn::ForwardContext context = encoder_->MakeContext(batch, encoder_options);
  EncoderOutput encoded = encoder_->Forward(batch, context, encoder_options);
  const Tensor input =
      input_dropout_->Forward(encoded.first_tokens, context, /*first_tokens=*/true);
  const Tensor dense =
      dropout_->Forward(dense_ == nullptr ? input : dense_->Forward(input), context,
                        /*first_tokens=*/true);
  SequenceClassifierOutput out;
  out.logits = output_->Forward(dense);
  out.hidden_states = std::move(encoded.hidden_states);
  if (batch.labels.defined()) out.loss = loss_(out.logits, batch, config_);
  return out;
}

}  // namespace lathe
