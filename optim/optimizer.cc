#include "lathe/optim/optimizer.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/cpu/optimizer.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/optim/device_update.h"

namespace lathe {
namespace {

// Returns the parameters of all groups. Parameters in one storage come in the order of
// registration. So an arena that they form already is kept, however the groups divide it.
std::vector<Parameter> InArenaOrder(const std::vector<ParameterGroup>& groups) {
  std::vector<Parameter> all;
  for (const ParameterGroup& group : groups) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  const bool one_storage = std::all_of(all.begin(), all.end(), [&](const Parameter& p) {
    return p.tensor.allocated() && p.tensor.impl()->storage == all[0].tensor.impl()->storage;
  });
  if (one_storage) {
    std::sort(all.begin(), all.end(), [](const Parameter& a, const Parameter& b) {
      return a.tensor.impl()->offset > b.tensor.impl()->offset;
    });
  }
  return all;
}

std::vector<double> RatesOf(const std::vector<ParameterGroup>& groups, double default_lr) {
  std::vector<double> rates;
  for (const ParameterGroup& group : groups) rates.push_back(group.lr < 0 ? default_lr : group.lr);
  return rates;
}

// Throws if this rank has only its stripes of the gradients and the optimizer doesn't shard its
// update.
void CheckHasGrads(Optimizer& optimizer) {
  if (optimizer.shards() == nullptr && optimizer.arena().has_partial_grads()) {
    optimizer.arena().grads();  // throws
  }
}

}  // namespace

std::vector<ParameterGroup> DecayGroups(const std::vector<Parameter>& parameters,
                                        double weight_decay) {
  ParameterGroup decayed, others;
  decayed.weight_decay = weight_decay;
  others.weight_decay = 0;
  for (const Parameter& parameter : parameters) {
    (parameter.decays ? decayed : others).parameters.push_back(parameter);
  }
  return {std::move(decayed), std::move(others)};
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups, double default_lr,
                     double default_weight_decay)
    : ledger_(RatesOf(groups, default_lr)) {
  Check(default_lr >= 0 && std::isfinite(default_lr), "optimizer",
        "lr must be finite and at least 0 but is ", default_lr);
  Check(default_weight_decay >= 0 && std::isfinite(default_weight_decay), "optimizer",
        "weight_decay must be finite and at least 0 but is ", default_weight_decay);
  std::map<const TensorImpl*, int> group_of;
  for (size_t g = 0; g < groups.size(); ++g) {
    const ParameterGroup& group = groups[g];
    Check(std::isfinite(group.lr), "optimizer", "lr of group ", g, " must be finite but is ",
          group.lr);
    Check(std::isfinite(group.weight_decay), "optimizer", "weight_decay of group ", g,
          " must be finite but is ", group.weight_decay);
    weight_decay_.push_back(group.weight_decay < 0 ? default_weight_decay : group.weight_decay);
    for (const Parameter& parameter : group.parameters) {
      Check(group_of.emplace(parameter.tensor.impl().get(), static_cast<int>(g)).second,
            "optimizer", "parameter ", parameter.name, " is given twice");
    }
  }
  Check(!group_of.empty(), "optimizer", "expected at least one parameter but got none");
  for (const ParameterGroup& group : groups) {
    for (const Parameter& parameter : group.parameters) {
      if (parameter.tensor.allocated()) continue;
      throw InvalidArgument("[optimizer] parameter " + parameter.name + " has no values yet",
                            "initialise or load the model first");
    }
  }
  arena_ = ParameterArena::FindOrCreate(InArenaOrder(groups));
  // Allocates the gradients now. Otherwise the first backward pass would make one buffer for each.
  arena_->GradsToRead();

  const auto& entries = arena_->entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t begin = entries[i].offset;
    // A range includes the gap after its parameter: an update leaves the gap's zeros as they are.
    const int64_t end = i + 1 < entries.size() ? entries[i + 1].offset : arena_->values().numel();
    const Tensor& parameter = entries[i].parameter.tensor;
    ranges_.push_back({begin, end, group_of.at(parameter.impl().get()), parameter, {{begin, end}}});
  }
  steps_ = Tensor::Zeros({std::ssize(ranges_)}, DType::kI64);
}

Optimizer::~Optimizer() = default;

void Optimizer::ShardUpdates(std::shared_ptr<const CurrentShards> shards) {
  if (shards != nullptr && !can_shard()) {
    throw InvalidArgument(
        "[optimizer] this optimizer's update of an element depends on the whole parameter, so "
        "processes can't divide it",
        "set shard_optimizer to false");
  }
  sharded_update_.Use(std::move(shards));
}

NamedSettings Optimizer::Settings() const {
  NamedSettings settings = {{"number of parameter groups", std::to_string(num_groups())}};
  for (int group = 0; group < num_groups(); ++group) {
    const std::string of_group = " of group " + std::to_string(group);
    settings.emplace_back("rate" + of_group,
                          ExactText(initial_lr(group)) + ", now " + ExactText(lr(group)));
    settings.emplace_back("weight decay" + of_group, ExactText(weight_decay_[group]));
  }
  return settings;
}

void Optimizer::Step() {
  if (!may_step()) return;
  try {
    MakeStep();
  } catch (...) {
    if (updater_ != nullptr) updater_->Queue();
    throw;
  }
  // Queues what still waits if the step was skipped.
  if (updater_ != nullptr) updater_->Queue();
  ++num_step_calls_;
}

void Optimizer::MakeStep() {
  CheckHasGrads(*this);
  const AllocationTag allocation_tag = AllocationTag::State("optimizer state");
  AdoptShards();
  const Device device = arena_->values().device();
  Check(sharded_update_.adopted() == nullptr || device.is_cpu(), "optimizer",
        "processes can divide an optimizer's updates on the CPU only");
  CheckSingleUpdater();
  const bool scaled = grad_scaler() != nullptr;
  const bool decided_there = scaled && !device.is_cpu();
  if (decided_there) {
    Unscale();
  } else {
    ledger_.BeginStep();
  }
  if (scaled && !decided_there) {
    UnscaleGrads();
    const bool skipped = unscaler_.found_inf();
    if (skipped) ledger_.SkipStep();
    unscaler_.RecordStep(skipped);
    if (skipped) return;
  }
  for (Tensor* buffer : StateBuffers()) {
    if (buffer->defined()) *buffer = buffer->To(device);  // the model may have moved since
  }
  steps_ = steps_.To(device);
  if (device.is_cpu()) ledger_.TakeStep();
  sharded_update_.Begin(arena_->values());
  UpdateParameters();
  sharded_update_.End();
}

// Throws if the parameters lie in memory that ranks share, and more than one rank would update some
// of them.
void Optimizer::CheckSingleUpdater() const {
  if (!arena_->values().impl()->storage->is_writable_by_others()) return;
  if (sharded_update_.adopted() == nullptr) {
    throw Error(
        absl::StatusCode::kFailedPrecondition,
        "[optimizer] the parameters lie in memory that several processes share, and each of them "
        "would update all parameters",
        "give this optimizer to Accelerator::Prepare, too, or set "
        "AcceleratorOptions::share_parameters to false");
  }
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Tensor& p = ranges_[i].parameter;
    if (!p.requires_grad()) continue;
    const ElementRange all = {ranges_[i].begin, ranges_[i].begin + p.numel()};
    if (Difference(all, sharded_update_.adopted()->ranges).empty()) continue;
    throw Error(absl::StatusCode::kFailedPrecondition,
                "[optimizer] parameter " + arena_->entries()[i].parameter.name +
                    " was frozen in the last Backward, and several processes would update it",
                "unfreeze parameters before Backward");
  }
}

void Optimizer::ZeroGrad() {
  if (!may_step()) return;
  unscaler_.RecordZeroedGradients();
  arena_->ZeroGrads();
}

void Optimizer::Unscale() {
  if (!unscaler_.NeedsDivision()) return;
  CheckHasGrads(*this);
  Check(shards() == nullptr, "grad_scaler",
        "a scaler can't be used while processes divide the optimizer's updates");
  if (arena_->values().device().is_cpu()) {
    unscaler_.DivideOnHost(*arena_);
  } else {
    Updater().Unscale(*arena_, Scaler());
  }
  unscaler_.RecordDivision();
}

void Optimizer::UnscaleGrads() {
  Unscale();
  if (updater_ != nullptr) updater_->Queue();
}

// Makes `own` follow the current shards.
void Optimizer::AdoptShards() {
  if (!sharded_update_.Adopt(StateBuffers())) return;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const std::vector<ElementRange> own =
        sharded_update_.OwnRangesOf({ranges_[i].begin, ranges_[i].end});
    if (std::exchange(ranges_[i].own, own) != own) OnOwnRangesChanged(i);
  }
}

namespace {

// The ranges of the gradients whose squares this rank sums.
class GradRanges {
 public:
  explicit GradRanges(Optimizer& optimizer)
      : shards_(optimizer.arena().has_partial_grads() ? optimizer.shards() : nullptr),
        grads_(optimizer.arena().GradsToRead().data<float>()) {
    for (const ParameterArena::Entry& entry : optimizer.arena().entries()) {
      const Tensor& p = entry.parameter.tensor;
      const ElementRange all = {entry.offset, entry.offset + p.numel()};
      // Leaves out rows that are known to be 0.
      if (const auto& rows = p.impl()->gradient().rows) {
        const int64_t width = p.numel() / p.dim(0);
        for (const int32_t row : *rows)
          Add({all.begin + row * width, all.begin + (row + 1) * width});
      } else {
        Add(all);
      }
    }
  }

  float Norm() const {
    const auto& kernels = cpu::Kernels<cpu::OptimizerKernels>();
    double sum = kernels.sum_of_squares(ranges_.data(), std::ssize(ranges_));
    if (shards_ != nullptr) sum = shards_->sum(sum);
    return static_cast<float>(std::sqrt(sum));
  }

 private:
  void Add(ElementRange range) {
    if (shards_ == nullptr) return Cut(range);
    for (const ElementRange& own : Intersection(range, shards_->own)) Cut(own);
    // Every rank holds the gradients outside of the sharded ranges. The ranks take turns, so that
    // each range is counted once.
    for (const ElementRange& common : Difference(range, shards_->ranges)) {
      if (next_++ % shards_->size == shards_->rank) Cut(common);
    }
  }
  void Cut(ElementRange range) {
    constexpr int64_t kMost = 16384;  // elements that one thread takes at a time
    for (; range.size() > 0; range.begin += kMost) {
      ranges_.push_back({grads_ + range.begin, std::min(range.size(), kMost)});
    }
  }

  const OptimizerShards* shards_;
  float* grads_;
  int64_t next_ = 0;
  std::vector<cpu::FloatRange> ranges_;
};

bool OnDevice(Optimizer& optimizer) { return !optimizer.arena().values().device().is_cpu(); }

float NormOf(Optimizer& optimizer) {
  CheckHasGrads(optimizer);
  return GradRanges(optimizer).Norm();
}

}  // namespace

Tensor GradNorm(Optimizer& optimizer) {
  optimizer.UnscaleGrads();
  if (OnDevice(optimizer)) return DeviceGradNorm(optimizer.arena());
  return Tensor::Full({}, NormOf(optimizer));
}

Tensor ClipGradNorm(Optimizer& optimizer, double max_norm) {
  Check(max_norm >= 0, "ClipGradNorm", "max_norm must be at least 0 but is ", max_norm);
  optimizer.Unscale();
  if (OnDevice(optimizer)) {
    DeviceUpdater& updater = optimizer.Updater();
    const Tensor results = updater.Clip(optimizer.arena(), max_norm, {}, {}, optimizer.Scaler());
    updater.Queue();
    return results.Slice(0, 1).Reshape({});
  }
  const float norm = NormOf(optimizer);
  const float ratio = static_cast<float>(max_norm) / (norm + 1e-6f);
  // Only records the factor: whoever reads the gradients multiplies by it. A NaN factor makes all
  // gradients NaN, so nobody takes them for clipped.
  if (!(ratio >= 1)) {
    for (const ParameterArena::Entry& entry : optimizer.arena().entries()) {
      entry.parameter.tensor.impl()->mutable_gradient().scale = ratio;
    }
  }
  return Tensor::Full({}, norm);
}

void ClipGradValue(Optimizer& optimizer, double max_value) {
  Check(max_value >= 0, "ClipGradValue", "max_value must be at least 0 but is ", max_value);
  optimizer.UnscaleGrads();
  CheckHasGrads(optimizer);
  const Tensor& grads = optimizer.arena().GradsToRead();  // rows of zeros stay zero
  const float limit = static_cast<float>(max_value);
  if (OnDevice(optimizer)) {
    return DeviceKernels<DeviceOptimizerKernels>().clamp(grads.data<float>(), grads.numel(), limit);
  }
  float* g = grads.data<float>();
  const int64_t n = grads.numel();
#pragma omp parallel for simd schedule(static) if (parallel : n > 16384)
  for (int64_t i = 0; i < n; ++i) {
    const float low = g[i] < -limit ? -limit : g[i];  // NaN stays NaN
    g[i] = low > limit ? limit : low;
  }
}

}  // namespace lathe
