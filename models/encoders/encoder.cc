#include "lathe/models/encoders/encoder.h"

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/models/forward_context.h"
#include "lathe/models/rows.h"

namespace lathe {

nn::ForwardContext Encoder::MakeContext(const Batch& batch,
                                        const EncoderForwardOptions& options) const {
  if (!batch.is_on_host()) return MakeContext(batch.To(Device{}), options);
  const int64_t rows = NumActivationRows(batch.num_tokens(), compute_dtype(), device());
  const int64_t step = batch.step >= 0 ? batch.step : own_step_;
  nn::ForwardContext context =
      MakeForwardContext(batch, rows, device(), static_cast<uint32_t>(step));
  context.training = options.training;
  context.seed = options.seed;
  if (relative_rows_ != nullptr || refuses_gaps_) CheckNoGaps(batch, model_);
  if (relative_rows_ != nullptr) {
    context.relative.rows = relative_rows_->On(device());
    context.relative.bias = relative_bias_;
  }
  ExtendContext(context);
  // Attention turns the queries of first tokens by position 0.
  if (context.rotary.table.defined() && options.first_tokens_only) {
    CheckSequencesStartAtZero(batch, model_);
  }
  return context;
}

void Encoder::UseRelativePositions(std::function<int64_t(int64_t distance)> row, Tensor bias) {
  relative_rows_ = std::make_unique<RelativeRows>(max_length(), std::move(row));
  relative_bias_ = std::move(bias);
}

EncoderOutput Encoder::Forward(const Batch& batch, const EncoderForwardOptions& options) const {
  if (!batch.is_on_host()) return Forward(batch.To(Device{}), options);
  Check(batch.size() >= 1, model_, "the batch is empty");
  return Forward(batch, MakeContext(batch, options), options);
}

EncoderOutput Encoder::Forward(const Batch& batch, const nn::ForwardContext& context,
                               const EncoderForwardOptions& options) const {
  if (!batch.is_on_host()) return Forward(batch.To(Device{}), context, options);
  if (options.training && batch.step < 0) ++own_step_;
  EncoderOutput out;
  Tensor hidden_states = Embed(batch, context);
  const int64_t rows = batch.num_tokens(), layers = num_layers();
  const bool shortcut = options.first_tokens_only && !options.output_hidden_states;
  for (int64_t i = 0; i < layers; ++i) {
    if (options.output_hidden_states)
      out.hidden_states.push_back(WithoutSurplusRows(hidden_states, rows));
    const bool first_tokens_only = shortcut && i + 1 == layers;
    const auto layer = [run = Layer(i), context, first_tokens_only](const Tensor& x) {
      return run(x, context, first_tokens_only);
    };
    hidden_states = options.training && gradient_checkpointing() ? Checkpoint(layer, hidden_states)
                                                                 : layer(hidden_states);
  }
  if (shortcut) {
    out.first_tokens = Cast(hidden_states, DType::kF32);
  } else {
    const Tensor all = Cast(hidden_states, DType::kF32);
    out.all_rows = all;
    out.last_hidden_state = WithoutSurplusRows(all, rows);
    // FirstTokens gets all rows, not the batch's alone: recorded work is repeated for batches with
    // more tokens, and with surplus sequences.
    out.first_tokens = nn::FirstTokens(all, context.sequences.cu_seqlens);
  }
  if (options.output_hidden_states) out.hidden_states.push_back(out.last_hidden_state);
  return out;
}

}  // namespace lathe
