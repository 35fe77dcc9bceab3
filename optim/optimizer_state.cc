// What an optimizer keeps in a checkpoint.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"
#include "lathe/optim/device_update.h"
#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

constexpr char kOwner[] = "optimizer";

}  // namespace

lathe::StateDict Optimizer::StateDict() {
  lathe::StateDict state;
  std::vector<double> rates, used_rates;
  for (int group = 0; group < num_groups(); ++group) {
    rates.push_back(lr(group));
    used_rates.push_back(used_lr(group));
  }
  nlohmann::json steps = nlohmann::json::object();
  const std::vector<int64_t> counts = steps_.ToVector<int64_t>();
  const std::vector<Tensor*> buffers = StateBuffers();
  const std::vector<std::string> names = StateNames();
  const OptimizerShards* const shards = sharded_update_.adopted();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    const std::string& name = arena_->entries()[i].parameter.name;
    Check(!steps.contains(name), kOwner, "two parameters are named ", name);
    steps[name] = counts[i];
    if (counts[i] == 0) continue;  // the moments are still 0
    const ElementRange whole = {range.begin, range.begin + range.parameter.numel()};
    // All ranks update what is not sharded; rank 0 tells of it for all.
    const std::vector<ElementRange> own = shards == nullptr   ? std::vector{whole}
                                          : shards->rank == 0 ? Difference(whole, shards->others)
                                                              : Intersection(whole, shards->own);
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (!buffers[b]->defined()) continue;
      for (const ElementRange& mine : own) {
        Tensor values = buffers[b]->Slice(mine.begin, mine.end);
        if (mine == whole) values = values.Reshape(range.parameter.shape());
        state.tensors.push_back(
            {names[b] + "/" + name, values, range.parameter.shape(), mine.begin - whole.begin});
      }
    }
    for (const OwnState& own_state : OwnStateOf(i)) {
      state.Add(own_state.name + "/" + name, own_state.values);
    }
  }
  state.values = {{"step_count", step_count()},
                  {"rates", std::move(rates)},
                  {"used_rates", std::move(used_rates)},
                  {"steps", std::move(steps)}};
  return state;
}

void Optimizer::LoadStateDict(const lathe::StateDict& state) {
  auto rates = state.Get<std::vector<double>>(kOwner, "rates");
  auto used_rates = state.Get<std::vector<double>>(kOwner, "used_rates");
  const auto steps = state.Get<std::map<std::string, nlohmann::json>>(kOwner, "steps");
  const auto step_count = state.Get<int64_t>(kOwner, "step_count");
  const auto groups = static_cast<size_t>(num_groups());
  Check(rates.size() == groups && used_rates.size() == groups, kOwner, "expected the state of ",
        groups, " groups of parameters but got that of ", rates.size());
  std::vector<int64_t> counts;
  for (const ParameterArena::Entry& entry : arena_->entries()) {
    const auto found = steps.find(entry.parameter.name);
    Check(found != steps.end(), kOwner, "the state has no parameter ", entry.parameter.name);
    const std::optional<int64_t> count = WholeNumber(found->second, 0);
    Check(count.has_value(), kOwner, "the state's step of ", entry.parameter.name, " is ",
          DumpJson(found->second));
    counts.push_back(*count);
  }
  Check(steps.size() == counts.size(), kOwner, "expected the state of ", counts.size(),
        counts.size() == 1 ? " parameter" : " parameters", " but got that of ", steps.size());

  const std::vector<Tensor*> buffers = StateBuffers();
  for (Tensor* buffer : buffers) {
    if (buffer->defined()) buffer->Fill(InitialState());
  }
  if (step_count > 0) AllocateState();
  const std::vector<std::string> names = StateNames();
  std::set<std::string> kept;
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (size_t i = 0; buffers[b]->defined() && i < ranges_.size(); ++i) {
      if (counts[i] == 0) continue;
      LoadBuffer(state, names[b], i, *buffers[b]);
      kept.insert(names[b] + "/" + arena_->entries()[i].parameter.name);
    }
  }
  for (size_t i = 0; i < ranges_.size(); ++i) {
    LoadOwnState(state, i, counts[i]);
    for (const OwnState& own : OwnStateOf(i))
      kept.insert(own.name + "/" + arena_->entries()[i].parameter.name);
  }
  for (const StateTensor& tensor : state.tensors) {
    Check(kept.contains(tensor.name), kOwner, "the state has ", tensor.name,
          ", which this optimizer does not keep");
  }
  steps_ = Tensor::FromVector(counts).To(steps_.device());
  ledger_.Restore(step_count, std::move(rates), std::move(used_rates));
  if (step_count > 0) OnStateLoaded();
}

void Optimizer::LoadOwnState(const lathe::StateDict& state, size_t i, int64_t count) {
  for (OwnState& own : OwnStateOf(i)) {
    own.values.Fill(0);
    if (count == 0) continue;
    const std::string name = own.name + "/" + arena_->entries()[i].parameter.name;
    const auto found = std::find_if(state.tensors.begin(), state.tensors.end(),
                                    [&](const StateTensor& tensor) { return tensor.name == name; });
    if (found == state.tensors.end() || !found->is_whole()) {
      throw DataLoss("[optimizer] the state has no whole " + name);
    }
    Check(found->shape == own.values.shape(), kOwner, "the state's ", name, " must have shape ",
          own.values.shape(), " but has ", found->shape);
    own.values.CopyFrom(found->values.Reshape(found->shape));
  }
}

void Optimizer::LoadBuffer(const lathe::StateDict& state, const std::string& name, size_t i,
                           Tensor& buffer) {
  const Parameter& parameter = arena_->entries()[i].parameter;
  const std::string whole_name = name + "/" + parameter.name;
  std::vector<const StateTensor*> parts;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.name != whole_name) continue;
    Check(tensor.shape == parameter.tensor.shape(), kOwner, "the state's ", whole_name,
          " has shape ", tensor.shape, " but the parameter ", parameter.tensor.shape());
    parts.push_back(&tensor);
  }
  std::sort(parts.begin(), parts.end(),
            [](const StateTensor* a, const StateTensor* b) { return a->begin < b->begin; });
  int64_t filled = 0;
  for (const StateTensor* part : parts) {
    const int64_t n = part->values.numel();
    if (part->begin != filled) break;
    const int64_t begin = ranges_[i].begin + filled;
    buffer.Slice(begin, begin + n).CopyFrom(part->values.Reshape({n}));
    filled += n;
  }
  if (filled != parameter.tensor.numel()) {
    throw DataLoss("[optimizer] the state has no element " + std::to_string(filled) + " of " +
                   whole_name);
  }
}

}  // namespace lathe
