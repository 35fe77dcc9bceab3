#include "lathe/optim/graphs/step_graphs.h"

#include <absl/hash/hash.h>
#include <absl/status/status.h>

#include <algorithm>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"

namespace lathe {
namespace {

const void* Place(const std::shared_ptr<TensorImpl>& tensor) {
  return tensor == nullptr || tensor->storage == nullptr ? nullptr : Tensor(tensor).raw_data();
}

// Refreshes the parameters' copies for products where parameters have changed, because recorded
// work can't. An optimizer that writes the copies keeps them up to date itself.
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

}  // namespace

StepGraphs::StepGraphs(Device device, size_t most)
    : device_(device),
      most_(most),
      backend_(BackendOf(device)),
      recorder_(backend_, "the step"),
      memory_(backend_.NewMemoryPool()) {}

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

bool StepGraphs::MayRunAgain(const std::vector<LeafState>& before) {
  return std::all_of(before.begin(), before.end(),
                     [](const LeafState& leaf) { return leaf.stale; });
}

std::string StepGraphs::WhyNot(const std::vector<Parameter>& parameters) const {
  if (!recorder_.given_up().empty()) return recorder_.given_up();
  for (const Parameter& parameter : parameters) {
    const LeafGradient& gradient = parameter.tensor.impl()->gradient();
    if (gradient.on_ready) return "gradients are waited for";
    if (gradient.scale != 1 || gradient.device_scale != nullptr) {
      return "gradients that are added to were clipped or scaled";
    }
  }
  return "";
}

StepGraphs::Key StepGraphs::KeyOf(const GraphPass& pass) {
  std::vector<const void*> places;
  std::vector<bool> flags;
  for (const Parameter& parameter : pass.parameters) {
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
  return {.model = &pass.model,
          .modes = pass.model.Modes(),
          .products = GetGemmOptions(),
          .of_pass = pass.key,
          .leaves = absl::HashOf(places, flags)};
}

StepGraphs::Entries::iterator StepGraphs::EntryOf(const GraphPass& pass) {
  Key key = KeyOf(pass);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    const auto& leaves = found->second.leaves;
    // A new parameter may lie at the address of one that is gone.
    if (std::none_of(leaves.begin(), leaves.end(), [](const auto& p) { return p.expired(); })) {
      return found;
    }
    entries_.erase(found);
  }
  if (entries_.size() >= most_) {
    entries_.erase(std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  }
  const auto added = entries_.try_emplace(std::move(key)).first;
  for (const Parameter& p : pass.parameters) added->second.leaves.push_back(p.tensor.impl());
  return added;
}

void StepGraphs::CopyNumbers(const GraphPass& pass, Entry& entry) {
  const Tensor host = pass.numbers();
  if (!entry.numbers.defined()) {
    const AllocationTag allocation_tag = AllocationTag::Buffer("batch inputs");
    entry.numbers = Tensor::Empty({host.bytes()}, DType::kU8, device_);
  }
  Check(entry.numbers.bytes() == host.bytes(), "step_graphs", "passes of one key have ",
        entry.numbers.bytes(), " and ", host.bytes(), " bytes of numbers");
  backend_.PrefetchToDevice(entry.numbers.raw_data(), host.raw_data(), host.bytes());
  entry.numbers.impl()->storage->BumpVersion();
}

void StepGraphs::RunPass(const GraphPass& pass, Entry& entry) {
  entry.loss.CopyFrom(pass.run(entry.numbers).Detach());
}

Tensor StepGraphs::RunNow(const GraphPass& pass, Entry& entry) {
  RunPass(pass, entry);
  entry.warm = true;
  std::vector<const void*> narrow = NarrowPlaces(pass.parameters);
  if (narrow != entry.narrow) entry.work = nullptr;
  entry.narrow = std::move(narrow);
  recorder_.CountEager();
  return Copy(entry.loss);
}

void StepGraphs::Record(const GraphPass& pass, Entry& entry) {
  entry.work = recorder_.Record(pass.describe(), [&] { RunPass(pass, entry); });
  entry.after = StatesOf(pass.parameters);
}

// Copies the loss into the device's common memory, which recorded work doesn't reuse.
Tensor StepGraphs::Copy(const Tensor& loss) {
  const DeviceMemoryPoolScope shared(backend_, nullptr);
  return loss.Clone();
}

void StepGraphs::GiveUp(const std::string& why) {
  recorder_.GiveUp(why);
  entries_.clear();
  memory_->Trim();
}

Tensor StepGraphs::RunEagerly(const std::string& why, const std::function<Tensor()>& run_eagerly) {
  const AllocationTag allocation_tag = AllocationTag::Buffer("the step's loss");
  recorder_.CountEager(why);
  return run_eagerly().Detach();
}

Tensor StepGraphs::Run(const GraphPass& pass) {
  const AllocationTag allocation_tag = AllocationTag::Buffer("the step's loss");
  if (const std::string why = WhyNot(pass.parameters); !why.empty()) {
    return RunEagerly(why, pass.run_eagerly);
  }
  const auto found = EntryOf(pass);
  Entry& entry = found->second;
  entry.last_use = ++clock_;
  if (!entry.why_not.empty()) return RunEagerly(entry.why_not, pass.run_eagerly);
  CopyNumbers(pass, entry);
  if (!entry.loss.defined()) entry.loss = Tensor::Empty({}, DType::kF32, device_);
  RefreshNarrowCopies(pass.parameters);
  if (entry.warm && entry.narrow != NarrowPlaces(pass.parameters)) {
    entry.work = nullptr;
    entry.warm = false;  // the next pass makes the new copies, which recorded work can't
  }
  const bool runs_now = !pass.numbers_were_checked || !entry.warm;
  const std::vector<LeafState> before = StatesOf(pass.parameters);
  try {
    const DeviceMemoryPoolScope scope(backend_, memory_);
    if (runs_now) return RunNow(pass, entry);
    if (entry.work == nullptr) Record(pass, entry);
  } catch (const Error& e) {
    const bool no_room = e.code() == absl::StatusCode::kResourceExhausted;
    if (runs_now && !(no_room && MayRunAgain(before))) {
      if (!entry.warm) entries_.erase(found);
      throw;
    }
    Restore(pass.parameters, before);
    for (const Parameter& p : pass.parameters) p.tensor.impl()->low_precision_version = -1;
    const std::string problem = e.message();
    no_room ? GiveUp(problem) : static_cast<void>(entry.why_not = problem);
    return RunEagerly(problem, pass.run_eagerly);
  }
  recorder_.Replay(*entry.work);
  Restore(pass.parameters, entry.after);
  return Copy(entry.loss);
}

}  // namespace lathe
