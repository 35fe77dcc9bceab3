#include "lathe/distributed/batch_passes.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/round_up.h"
#include "lathe/data/datasets/device_batch.h"

namespace lathe {
namespace {

// Rounds n up by at most 1/16, or to the next multiple of `least`, a power of two.
int64_t RoundUpBySixteenths(int64_t n, int64_t least) {
  const auto sixteenth = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n / 16)));
  return std::max(least, RoundUp(n, std::max(least, sixteenth)));
}

int32_t Largest(const Tensor& integers) {
  // A negative number becomes far out of range as an unsigned one.
  uint32_t largest = 0;
  for (const int32_t value : integers.values<int32_t>())
    largest = std::max(largest, static_cast<uint32_t>(value));
  return static_cast<int32_t>(std::min<uint32_t>(largest, INT32_MAX));
}

}  // namespace

int64_t GraphRows(int64_t tokens) { return RoundUpBySixteenths(tokens, 128); }

int64_t GraphSequences(int64_t sequences) { return RoundUpBySixteenths(sequences, 8); }

int64_t GraphLength(int64_t max_seqlen) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_seqlen, 64))));
}

void BackwardFrom(const Tensor& loss, double seed, GradScaler* scaler) {
  const Tensor start = Tensor::Full(loss.shape(), seed, loss.dtype(), loss.device());
  if (scaler != nullptr) scaler->ScaleLossGradient(start);
  Backward(loss, start);
}

BatchPasses::LargestNumbers BatchPasses::LargestOf(const Batch& batch) {
  int64_t largest_label = -1, shifted = 0, has_gaps = 0;
  const auto cu = batch.cu_seqlens.values<int32_t>();
  const auto positions = batch.position_ids.values<int32_t>();
  for (int64_t b = 0; b < batch.size(); ++b) {
    const int32_t first = cu[b], last = cu[b + 1] - 1;
    shifted |= positions[first] != 0;
    has_gaps |= positions[last] - positions[first] != last - first;
  }
  if (batch.labels.defined() && !IsFloating(batch.labels.dtype())) {
    constexpr int64_t kIgnored = -100;
    const Tensor labels = batch.labels.To(DType::kI64);
    for (const int64_t label : labels.values<int64_t>()) {
      if (label != kIgnored) largest_label = std::max(largest_label, label < 0 ? INT64_MAX : label);
    }
  }
  return {Largest(batch.input_ids),
          Largest(batch.token_type_ids),
          Largest(batch.position_ids),
          largest_label,
          shifted,
          has_gaps};
}

// One pass over a batch, behind the functions of a GraphPass.
struct BatchPasses::Pass {
  const Batch& batch;
  const Forward& forward;
  const float grad_seed;
  GradScaler* const scaler;     // null: none
  LargestNumbers largest = {};  // of the batch
  ModelFacts* facts = nullptr;
  PackedShape shape = {};
  bool surplus_was_refused = false;  // true if the last call of `forward` met surplus and failed

  Tensor Run(const Tensor& numbers) {
    Batch there = batch;
    there.on_device = std::make_shared<const DeviceBatch>(DeviceBatch::In(numbers, batch, shape));
    there.notes = std::make_shared<PassNotes>();
    const bool has_surplus = shape.sequences != batch.size();
    surplus_was_refused = has_surplus;
    const Tensor loss = forward(there);
    Check(loss.defined() && loss.ndim() == 0 && loss.dtype() == DType::kF32, "step_graphs",
          "the loss must be one float32");
    const bool leaves_out = there.notes->loss_without_surplus.lock() == loss.impl();
    Check(!has_surplus || leaves_out, "step_graphs", "the loss counts surplus sequences");
    surplus_was_refused = false;
    facts->leaves_surplus_out = leaves_out;
    if (scaler != nullptr) scaler->ScaleLossGradient(there.on_device->grad_seed);
    Backward(loss, there.on_device->grad_seed);
    std::ranges::transform(facts->checked, largest, facts->checked.begin(),
                           [](int64_t a, int64_t b) { return std::max(a, b); });
    return loss;
  }

  Tensor RunEagerly() {
    surplus_was_refused = false;
    const Tensor loss = forward(batch);
    BackwardFrom(loss, grad_seed, scaler);
    return loss;
  }
};

BatchPasses::BatchPasses(Device device, std::shared_ptr<GradScaler> scaler, size_t most)
    : device_(device), scaler_(std::move(scaler)), graphs_(device, most) {}

Tensor BatchPasses::RunWith(int64_t sequences, const Module& model,
                            const std::vector<Parameter>& parameters, Pass& pass) {
  const Batch& batch = pass.batch;
  const Tensor& labels = batch.labels;
  pass.shape = {.rows = GraphRows(batch.num_tokens() + sequences - batch.size()),
                .sequences = sequences,
                .max_seqlen = GraphLength(batch.max_seqlen)};
  const int64_t label_columns = !labels.defined() ? -1 : labels.ndim() == 1 ? 0 : labels.dim(1);
  const DType label_dtype = labels.defined() ? labels.dtype() : DType::kF32;
  return graphs_.Run(
      {.model = model,
       .parameters = parameters,
       .key = {pass.shape.rows, sequences, pass.shape.max_seqlen, label_columns,
               static_cast<int64_t>(label_dtype), batch.sample_weights.defined(),
               batch.encoded.defined()},
       .numbers_were_checked =
           std::ranges::equal(pass.facts->checked, pass.largest, std::greater_equal()),
       .numbers =
           [&pass] {
             return DeviceBatch::Pack(pass.batch, pass.shape,
                                      static_cast<uint32_t>(pass.batch.step), pass.grad_seed);
           },
       .run = [&pass](const Tensor& numbers) { return pass.Run(numbers); },
       .run_eagerly = [&pass] { return pass.RunEagerly(); },
       .describe =
           [&pass] {
             return absl::StrCat(pass.shape.rows, " rows of ", pass.shape.sequences,
                                 " sequences of up to ", pass.shape.max_seqlen, " tokens");
           }});
}

Tensor BatchPasses::Run(const Module& model, const Batch& batch, float grad_seed,
                        const Forward& forward) {
  const std::vector<Parameter> parameters = model.Parameters();
  if (scaler_ != nullptr) scaler_->PrepareFor(device_);
  Pass pass = {.batch = batch, .forward = forward, .grad_seed = grad_seed, .scaler = scaler_.get()};
  std::string why = graphs_.WhyNot(parameters);
  if (why.empty() && batch.step < 0) why = "the batch has no step number; a prepared loader's have";
  if (!why.empty()) return graphs_.RunEagerly(why, [&pass] { return pass.RunEagerly(); });
  const std::shared_ptr<TensorImpl>& first = parameters.at(0).tensor.impl();
  ModelFacts& facts = facts_[first.get()];
  if (facts.owner.expired()) facts = {.owner = first};
  pass.facts = &facts;
  pass.largest = LargestOf(batch);
  if (!facts.TakesSurplus()) return RunWith(batch.size(), model, parameters, pass);
  try {
    return RunWith(GraphSequences(batch.size()), model, parameters, pass);
  } catch (const Error& e) {
    if (!pass.surplus_was_refused || e.code() == absl::StatusCode::kResourceExhausted) throw;
  }
  facts.refuses_surplus = true;
  try {
    return RunWith(batch.size(), model, parameters, pass);
  } catch (...) {
    facts.refuses_surplus = false;  // surplus rows were not the cause
    throw;
  }
}

}  // namespace lathe
