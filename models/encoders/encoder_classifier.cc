#include "lathe/models/encoders/encoder_classifier.h"

#include <algorithm>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/segment/segment_mean.h"
#include "lathe/models/forward_context.h"
#include "lathe/models/rows.h"

namespace lathe {

EncoderClassifier::EncoderClassifier(PretrainedConfig config, uint64_t seed, const char* name,
                                     std::shared_ptr<Encoder> encoder,
                                     const ClassifierHeadOptions& head)
    : SequenceClassifier(std::move(config)),
      seed_(seed),
      loss_(head.loss),
      name_(name),
      pooling_(head.pooling),
      encoder_(std::move(encoder)) {
  RegisterModule(head.encoder.empty() ? name : head.encoder, encoder_);
  const int64_t H = encoder_->hidden_size();
  const Init init = Init::Normal(head.initializer_range);
  if (head.has_dense) {
    dense_ = Register<nn::Linear>(head.dense, H, H, head.dense_init.value_or(init), head.activation,
                                  head.dense_has_bias);
  }
  if (!head.norm.empty()) {
    norm_ = Register<nn::LayerNorm>(head.norm, H, head.norm_eps, head.norm_has_bias);
  }
  input_dropout_ = Register<nn::Dropout>("input_dropout", head.input_dropout, "classifier.input");
  dropout_ = Register<nn::Dropout>("dropout", head.dropout, "classifier");
  output_ =
      Register<nn::Linear>(head.output, H, config_.num_labels(), head.output_init.value_or(init));
}

NamedSettings EncoderClassifier::OwnSettings() const {
  auto settings = SequenceClassifier::OwnSettings();
  settings.emplace_back("seed", std::to_string(seed_));
  return settings;
}

Tensor EncoderClassifier::Head(const Tensor& pooled, const nn::ForwardContext& context,
                               bool first_tokens) const {
  const Tensor input = input_dropout_->Forward(pooled, context, first_tokens);
  const Tensor dense = dense_ == nullptr ? input : dense_->Forward(input);
  const Tensor normed = norm_ == nullptr ? dense : norm_->Forward(dense);
  return output_->Forward(dropout_->Forward(normed, context, first_tokens));
}

EncoderForwardOptions EncoderClassifier::EncoderOptions(bool output_hidden_states) const {
  return {.output_hidden_states = output_hidden_states,
          .first_tokens_only = pooling_ == Pooling::kFirstToken,
          .training = training(),
          .seed = seed_};
}

Tensor EncoderClassifier::Pooled(const EncoderOutput& encoded,
                                 const nn::ForwardContext& context) const {
  return pooling_ == Pooling::kFirstToken
             ? encoded.first_tokens
             : SegmentMean(encoded.all_rows, context.sequences.cu_seqlens);
}

Tensor EncoderClassifier::Encode(const Batch& batch) {
  if (!batch.is_on_host()) return Encode(batch.To(Device{}));
  const auto is_trained = [](const Parameter& p) { return p.tensor.requires_grad(); };
  if (pooling_ == Pooling::kMeanLogits || std::ranges::any_of(encoder_->Parameters(), is_trained))
    return {};
  const EncoderForwardOptions options = EncoderOptions(/*output_hidden_states=*/false);
  if (pooling_ == Pooling::kFirstToken) CheckSequencesStartAtZero(batch, name_);
  const NoGradGuard no_grad;
  nn::ForwardContext context = encoder_->MakeContext(batch, options);
  bool drops = false;
  context.drops = &drops;
  const Tensor pooled = Pooled(encoder_->Forward(batch, context, options), context);
  return drops ? Tensor() : pooled;
}

SequenceClassifierOutput EncoderClassifier::Forward(const Batch& batch,
                                                    const ForwardOptions& options) {
  if (!batch.is_on_host()) return Forward(batch.To(Device{}), options);
  const EncoderForwardOptions encoder_options = EncoderOptions(options.output_hidden_states);
  Check(batch.size() >= 1, name_, "the batch is empty");
  if (pooling_ == Pooling::kFirstToken) CheckSequencesStartAtZero(batch, name_);
  const nn::ForwardContext context = encoder_->MakeContext(batch, encoder_options);
  SequenceClassifierOutput out;
  const Tensor known = EncodedFor(batch, device());
  if (known.defined() && pooling_ != Pooling::kMeanLogits && !options.output_hidden_states) {
    out.logits = Head(known, context, /*first_tokens=*/true);
  } else {
    EncoderOutput encoded = encoder_->Forward(batch, context, encoder_options);
    // With kMeanLogits, products of all rows are worth the narrow type.
    out.logits = pooling_ != Pooling::kMeanLogits
                     ? Head(Pooled(encoded, context), context, /*first_tokens=*/true)
                     : SegmentMean(Cast(Head(Cast(encoded.all_rows, compute_dtype()), context,
                                             /*first_tokens=*/false),
                                        DType::kF32),
                                   context.sequences.cu_seqlens);
    out.hidden_states = std::move(encoded.hidden_states);
  }
  if (batch.labels.defined()) out.loss = loss_(out.logits, batch, config_, loss_options_);
  return out;
}

}  // namespace lathe
