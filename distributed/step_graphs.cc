#include "lathe/distributed/step_graphs.h"

#include <absl/hash/hash.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/asked_by.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/log.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/losses.h"

namespace lathe {
namespace {

int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Rounds n up by at most 1/16, or to the next multiple of `least`, a power of two.
int64_t RoundUpBySixteenths(int64_t n, int64_t least) {
  const auto sixteenth = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n / 16)));
  return std::max(least, RoundUp(n, std::max(least, sixteenth)));
}

const void* Place(const std::shared_ptr<TensorImpl>& tensor) {
  return tensor == nullptr || tensor->storage == nullptr ? nullptr : Tensor(tensor).raw_data();
}

// Refreshes the parameters' copies for products where parameters have changed. An optimizer that
// writes the copies keeps them up to date itself.
void RefreshNarrowCopies(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    const TensorImpl& p = *parameter.tensor.impl();
    if (p.low_precision != nullptr) LowPrecisionCopy(parameter.tensor, p.low_precision->dtype);
  }
}

std::vector<const void*> NarrowPlaces(const std::vector<Parameter>& parameters) {
  std::vector<const void*> places;
  for (const Parameter& p : parameters) places.push_back(Place(p.tensor.impl()->low_precision));
  return places;
}

int32_t Largest(const Tensor& integers) {
  const auto values = integers.values<int32_t>();
  // A negative number becomes far out of range as an unsigned one.
  uint32_t largest = 0;
  for (const int32_t value : values) largest = std::max(largest, static_cast<uint32_t>(value));
  return static_cast<int32_t>(std::min<uint32_t>(largest, INT32_MAX));
}

}  // namespace

int64_t GraphRows(int64_t tokens) { return RoundUpBySixteenths(tokens, 128); }

int64_t GraphSequences(int64_t sequences) { return RoundUpBySixteenths(sequences, 8); }

int64_t GraphLength(int64_t max_seqlen) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_seqlen, 64))));
}

StepGraphs::Bounds StepGraphs::Bounds::Of(const Batch& batch) {
  Bounds bounds;
  bounds.input_id = Largest(batch.input_ids);
  bounds.token_type = Largest(batch.token_type_ids);
  bounds.position = Largest(batch.position_ids);
  const auto cu = batch.cu_seqlens.values<int32_t>();
  const auto positions = batch.position_ids.values<int32_t>();
  for (int64_t b = 0; b < batch.size(); ++b) bounds.shifted |= positions[cu[b]] != 0;
  if (!batch.labels.defined() || IsFloating(batch.labels.dtype())) return bounds;
  const Tensor labels = batch.labels.To(DType::kI64);
  for (const int64_t label : labels.values<int64_t>()) {
    if (label != kIgnoreIndex) bounds.label = std::max(bounds.label, label < 0 ? INT64_MAX : label);
  }
  return bounds;
}

bool StepGraphs::Bounds::Cover(const Bounds& other) const {
  return input_id >= other.input_id && token_type >= other.token_type &&
         position >= other.position && label >= other.label && shifted >= other.shifted;
}

void StepGraphs::Bounds::Widen(const Bounds& other) {
  input_id = std::max(input_id, other.input_id);
  token_type = std::max(token_type, other.token_type);
  position = std::max(position, other.position);
  label = std::max(label, other.label);
  shifted |= other.shifted;
}

StepGraphs::StepGraphs(Device device, std::shared_ptr<GradScaler> scaler, size_t most)
    : device_(device),
      most_(most),
      backend_(BackendOf(device)),
      scaler_(std::move(scaler)),
      memory_(backend_.NewMemory()) {}

std::vector<StepGraphs::LeafState> StepGraphs::StatesOf(const std::vector<Parameter>& parameters) {
  std::vector<LeafState> states;
  for (const Parameter& parameter : parameters) {
    const LeafGradient& gradient = parameter.tensor.impl()->gradient();
    states.push_back({gradient.is_stale, gradient.rows.has_value()});
  }
  return states;
}

void StepGraphs::Restore(const std::vector<Parameter>& parameters,
                         const std::vector<LeafState>& states) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    LeafGradient& gradient = parameters[i].tensor.impl()->mutable_gradient();
    gradient.is_stale = states[i].stale;
    if (!states[i].has_rows) gradient.rows.reset();
  }
}

std::string StepGraphs::WhyNot(const std::vector<Parameter>& parameters, const Batch& batch) {
  if (batch.step < 0) return "the batch has no step number; a prepared loader's have";
  for (const Parameter& parameter : parameters) {
    const LeafGradient& gradient = parameter.tensor.impl()->gradient();
    if (gradient.on_ready) return "gradients are waited for";
    if (gradient.scale != 1 || gradient.device_scale != nullptr) {
      return "gradients that are added to were clipped or scaled";
    }
  }
  return "";
}

StepGraphs::Key StepGraphs::KeyOf(const Module& model, const std::vector<Parameter>& parameters,
                                  const Batch& batch, int64_t sequences) const {
  std::vector<const void*> places;
  std::vector<bool> flags;
  for (const Parameter& parameter : parameters) {
    const TensorImpl& p = *parameter.tensor.impl();
    const LeafGradient& gradient = p.gradient();
    for (const void* place :
         {static_cast<const void*>(&p), Place(parameter.tensor.impl()), Place(gradient.buffer)}) {
      places.push_back(place);
    }
    for (const bool flag : {p.requires_grad, gradient.is_stale, gradient.rows.has_value()}) {
      flags.push_back(flag);
    }
  }
  const Tensor& labels = batch.labels;
  return {.model = &model,
          .modes = model.Modes(),
          .products = GetGemmOptions(),
          .rows = GraphRows(batch.num_tokens() + sequences - batch.size()),
          .sequences = sequences,
          .max_seqlen = GraphLength(batch.max_seqlen),
          .label_columns = !labels.defined()    ? -1
                           : labels.ndim() == 1 ? 0
                                                : labels.dim(1),
          .label_dtype = labels.defined() ? labels.dtype() : DType::kF32,
          .leaves = absl::HashOf(places, flags)};
}

StepGraphs::Entry& StepGraphs::EntryOf(const Key& key, const std::vector<Parameter>& parameters) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    const auto& leaves = found->second.leaves;
    // Another parameter may lie where one was that is gone.
    if (std::none_of(leaves.begin(), leaves.end(), [](const auto& p) { return p.expired(); })) {
      return found->second;
    }
    entries_.erase(found);
  }
  if (entries_.size() >= most_) {
    entries_.erase(std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  }
  Entry& entry = entries_[key];
  for (const Parameter& p : parameters) entry.leaves.push_back(p.tensor.impl());
  return entry;
}

StepGraphs::Seen& StepGraphs::SeenBy(const std::vector<Parameter>& parameters) {
  const std::shared_ptr<TensorImpl>& first = parameters.at(0).tensor.impl();
  Seen& seen = seen_[first.get()];
  if (seen.owner.expired()) seen = {};
  seen.owner = first;
  return seen;
}

void StepGraphs::GiveUp(const std::string& why) {
  given_up_ = why;
  entries_.clear();
  memory_->Trim();
}

Tensor StepGraphs::RunEagerly(const std::string& why, const Batch& batch, float grad_seed,
                              const std::function<Tensor(const Batch&)>& forward) {
  if (told_.insert(why).second) LogDebug("no CUDA graph for the step: " + why);
  ++statistics_.eager;
  const Tensor loss = forward(batch);
  const Tensor seed = Tensor::Full(loss.shape(), grad_seed, loss.dtype(), loss.device());
  if (scaler_ != nullptr) scaler_->ScaleSeed(seed);
  Backward(loss, seed);
  return loss.Detach();
}

// Copies the loss into the device's common memory, which recorded work doesn't reuse.
Tensor StepGraphs::Copy(const Tensor& loss) {
  const DeviceMemoryScope shared(backend_, nullptr);
  return loss.Clone();
}

Tensor StepGraphs::Run(const Module& model, const Batch& batch, float grad_seed,
                       const std::function<Tensor(const Batch&)>& forward) {
  const AskedBy asked_by = AskedBy::Buffer("the step's loss");
  const std::vector<Parameter> parameters = model.Parameters();
  if (scaler_ != nullptr) scaler_->PrepareFor(device_);
  const std::string why = given_up_.empty() ? WhyNot(parameters, batch) : given_up_;
  if (!why.empty()) return RunEagerly(why, batch, grad_seed, forward);
  Seen& seen = SeenBy(parameters);
  const Bounds bounds = Bounds::Of(batch);
  const bool looked_at = seen.bounds.Cover(bounds);
  const int64_t B = batch.size(), S = seen.TakesSurplus() ? GraphSequences(B) : B;
  const Key key = KeyOf(model, parameters, batch, S);
  Entry& entry = EntryOf(key, parameters);
  entry.last_use = ++clock_;
  if (!entry.why_not.empty()) return RunEagerly(entry.why_not, batch, grad_seed, forward);

  const auto step = static_cast<uint32_t>(batch.step);
  if (entry.inputs == nullptr) {
    entry.inputs =
        std::make_shared<PackedInputs>(PackedInputs::Make(batch, key.rows, device_, step, S));
    entry.inputs->max_seqlen = key.max_seqlen;
    entry.loss = Tensor::Empty({}, DType::kF32, device_);
  }
  entry.inputs->Fill(batch, step, grad_seed);
  Batch there = batch;
  there.on_device = entry.inputs;
  there.notes = std::make_shared<PassNotes>();
  bool began_backward = false;
  const auto pass = [&] {
    there.notes->loss_without_surplus.reset();
    const Tensor loss = forward(there);
    Check(loss.defined() && loss.ndim() == 0 && loss.dtype() == DType::kF32, "step_graphs",
          "the loss must be one float32");
    const bool leaves_out = there.notes->loss_without_surplus.lock() == loss.impl();
    Check(S == B || leaves_out, "step_graphs", "the loss counts surplus sequences");
    seen.leaves_surplus_out = leaves_out;
    began_backward = true;
    if (scaler_ != nullptr) scaler_->ScaleSeed(entry.inputs->grad_seed);
    Backward(loss, entry.inputs->grad_seed);
    entry.loss.CopyFrom(loss.Detach());
  };
  RefreshNarrowCopies(parameters);
  if (entry.warm && entry.narrow != NarrowPlaces(parameters)) {
    entry.work = nullptr;
    entry.warm = false;  // recorded work can't make such copies
  }
  const std::vector<LeafState> before = StatesOf(parameters);
  try {
    const DeviceMemoryScope scope(backend_, memory_);
    if (!looked_at || !entry.warm) {
      pass();
      seen.bounds.Widen(bounds);
      entry.warm = true;
      std::vector<const void*> narrow = NarrowPlaces(parameters);
      if (narrow != entry.narrow) entry.work = nullptr;
      entry.narrow = std::move(narrow);
      ++statistics_.eager;
      return Copy(entry.loss);
    }
    if (entry.work == nullptr) {
      entry.work = backend_.Record(pass);
      entry.after = StatesOf(parameters);
      ++statistics_.recorded;
      LogDebug(absl::StrCat("recorded a CUDA graph for ", key.rows, " rows of ", key.sequences,
                            " sequences of up to ", key.max_seqlen, " tokens"));
    }
  } catch (const Error& e) {
    const bool no_room = e.code() == absl::StatusCode::kResourceExhausted;
    const bool nothing_was_done = looked_at && entry.warm;  // the pass was only recorded
    if (S != B && !nothing_was_done && !began_backward && !no_room) {
      // `forward` may not take surplus sequences.
      seen.refuses_surplus = true;
      try {
        const Tensor loss = Run(model, batch, grad_seed, forward);
        entries_.erase(key);
        return loss;
      } catch (...) {
        seen.refuses_surplus = false;  // that was not why
        throw;
      }
    }
    // Buffers that were written may be written again, but sums in gradients must not be added
    // twice.
    const bool may_repeat =
        std::all_of(before.begin(), before.end(), [](const LeafState& leaf) { return leaf.stale; });
    if (!nothing_was_done && !(no_room && may_repeat)) throw;
    Restore(parameters, before);
    for (const Parameter& p : parameters) p.tensor.impl()->low_precision_version = -1;
    const std::string problem = e.message();
    no_room ? GiveUp(problem) : static_cast<void>(entry.why_not = problem);
    return RunEagerly(problem, batch, grad_seed, forward);
  }
  entry.work->Launch();
  Restore(parameters, entry.after);
  ++statistics_.replayed;
  return Copy(entry.loss);
}

}  // namespace lathe
