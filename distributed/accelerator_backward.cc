// Backward passes, and the exchange of gradients at the end of a step.
#include <absl/strings/str_cat.h>

#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <span>

#include "lathe/core/autograd.h"
#include "lathe/distributed/accelerator_state.h"

namespace lathe {
namespace {

// Each rank updates its stripe of each of the ranges (core/base/element_range.h). `overlap`: values
// that come from other machines may come during the next forward pass.
std::shared_ptr<const OptimizerShards> MakeUpdateShards(std::shared_ptr<ProcessGroup> group,
                                                        std::vector<ElementRange> ranges,
                                                        bool overlap) {
  auto shards = std::make_shared<OptimizerShards>();
  shards->rank = group->rank();
  shards->size = group->size();
  for (const ElementRange& range : ranges) {
    const ElementRange own = StripeOfRank(range, group->rank(), group->size());
    shards->own.push_back(own);
    for (const ElementRange& other : Difference(range, {own})) shards->others.push_back(other);
  }
  shards->gather = [group, ranges](std::span<float> data,
                                   const std::vector<ElementRange>& changed) {
    group->AllGatherStripes(data, ranges, changed);
  };
  if (overlap && !group->reads_memory()) {
    shards->begin_gather = [group, ranges](const Tensor& values,
                                           const std::vector<ElementRange>& changed) {
      group->BeginAllGatherStripes(values, ranges, changed);
    };
  }
  shards->barrier = [group] { group->Barrier(); };
  shards->sum = [group](double mine) {
    group->AllReduce(std::span(&mine, 1));
    return mine;
  };
  shards->ranges = std::move(ranges);
  return shards;
}

}  // namespace

void Accelerator::State::CoverParameters() {
  std::set<const TensorImpl*> covered;  // each once, also if two models share it
  for (const auto& arena : arenas) {
    for (const auto& entry : arena->entries()) covered.insert(entry.parameter.tensor.impl().get());
  }
  std::vector<Parameter> rest;
  std::ranges::copy_if(parameters, std::back_inserter(rest), [&](const Parameter& p) {
    return p.tensor.requires_grad() && covered.insert(p.tensor.impl().get()).second;
  });
  if (rest.empty()) return;
  arenas.push_back(ParameterArena::FindOrCreate(rest));
  renew_reducer = true;
}

void Accelerator::State::UpdateReducer(const std::shared_ptr<ProcessGroup>& group,
                                       const AcceleratorOptions& options) {
  if (reducer != nullptr && !renew_reducer && !reducer->IsOutdated(parameters)) return;
  if (reducer != nullptr) reducer->CountSumsOnce();
  reducer = nullptr;  // removes its hooks first
  CoverParameters();
  Check(!arenas.empty(), "backward", "Prepare the model and its optimizer first");
  shards.resize(arenas.size());
  std::vector<bool> sharded;
  for (const auto& present : shards) sharded.push_back(present != nullptr);
  reducer = std::make_unique<Reducer>(group, arenas, options.reducer, sharded, device_group);
  renew_reducer = false;
  for (size_t i = 0; i < arenas.size(); ++i) {
    if (shards[i] == nullptr) continue;
    std::vector<ElementRange> ranges = reducer->ShardedRanges(i);
    std::shared_ptr<const OptimizerShards>& present = shards[i]->now;
    if (present == nullptr ? !ranges.empty() : present->ranges != ranges)
      present = MakeUpdateShards(group, ranges, options.reducer.overlap);
    if (options.share_parameters && present != nullptr) reducer->ShareValues(i);
  }
}

void RankClock::Begin(CollectiveTimes& times) {
  if (times_ != nullptr) return;
  times_ = &times;
  at_begin_ = at_end_of_step_ = times.seconds();
  end_of_step_ = Clock::now();
}

double RankClock::OwnSeconds() const {
  if (times_ == nullptr) return 0;
  const double seconds = std::chrono::duration<double>(Clock::now() - end_of_step_).count();
  return std::max(0.0, seconds - (times_->seconds().exposed() - at_end_of_step_.exposed()));
}

void RankClock::EndStep(const std::vector<StepRecord>& records) {
  if (times_ == nullptr) return;
  at_end_of_step_ = times_->seconds();
  end_of_step_ = Clock::now();
  ++num_steps_;
  own_seconds_.resize(records.size());
  for (size_t rank = 0; rank < records.size(); ++rank)
    own_seconds_[rank] += records[rank].own_seconds;
}

RankCosts RankClock::costs() const {
  RankCosts costs = {.num_steps = num_steps_,
                     .in_calls = {at_end_of_step_.all - at_begin_.all,
                                  std::max(0.0, at_end_of_step_.hidden - at_begin_.hidden)}};
  if (own_seconds_.size() < 2) return costs;
  const auto slowest = std::ranges::max_element(own_seconds_);
  const double others =
      (std::accumulate(own_seconds_.begin(), own_seconds_.end(), 0.0) - *slowest) /
      static_cast<double>(own_seconds_.size() - 1);
  costs.slowest_rank = static_cast<int>(slowest - own_seconds_.begin());
  costs.slowest_rank_extra = *slowest - others;
  return costs;
}

Accelerator::Scope Accelerator::Accumulate() {
  State& s = *state_;
  Check(!s.accumulating, "accumulate", "one batch is being accumulated already");
  const auto share = s.PresentShare(num_processes());
  const int64_t steps = gradient_accumulation_steps();
  if (s.window_weight == 0) {
    const int64_t batches = std::min(steps - s.micro_step % steps, share.batches_left + 1);
    s.window_weight = (share.total > 0 ? share.total : 1) * static_cast<double>(batches);
  }
  ++s.micro_step;
  *s.sync = share.batches_left == 0 || s.micro_step % steps == 0;
  if (*s.sync) s.micro_step = 0;
  s.accumulating = true;
  s.counted = false;
  return Scope([&s] {
    s.accumulating = false;
    s.CloseWindow();
  });
}

Accelerator::Scope Accelerator::NoSync() {
  state_->no_sync = true;
  return Scope([s = state_.get()] { s->no_sync = false; });
}

bool Accelerator::sync_gradients() const { return *state_->sync; }
double Accelerator::last_loss() const { return state_->losses.Last(); }
std::vector<double> Accelerator::TakeLosses() { return state_->losses.Take(); }
Tensor Accelerator::LastLosses() const { return state_->losses.LastOnDevice(); }
GraphStatistics Accelerator::graph_statistics() const {
  return state_->graphed_passes == nullptr ? GraphStatistics()
                                           : state_->graphed_passes->statistics();
}
RankCosts Accelerator::rank_costs() const { return state_->rank_clock.costs(); }
bool Accelerator::stop_requested() const { return state_->stop_requested; }

Accelerator::Pass Accelerator::PassOf(const Tensor& loss) {
  if (loss.numel() != 1) {
    throw InvalidArgument(
        "[backward] the loss must be one number but has shape " + ToString(loss.shape()),
        "take the mean over the samples (Mean)");
  }
  return [this, loss](double seed) {
    BackwardFrom(loss, seed, scaler_.get());
    return loss;
  };
}

void Accelerator::Backward(const Tensor& loss) { BackwardOfBatch(PassOf(loss)); }

Tensor Accelerator::Backward(const Module& model, const Batch& batch,
                             const std::function<Tensor(const Batch&)>& forward) {
  if (!batch.is_on_host()) return Backward(model, batch.To(Device{}), forward);
  State& s = *state_;
  // A share of weight 0 has no backward pass that could be recorded.
  if (s.graphed_passes == nullptr || use_distributed() ||
      s.PresentShare(num_processes()).weight == 0) {
    const Tensor loss = forward(batch);
    Backward(loss);
    return loss.Detach();
  }
  Tensor loss;
  BackwardOfBatch([&](double seed) {
    return loss = s.graphed_passes->Run(model, batch, static_cast<float>(seed), forward);
  });
  return loss;
}

void Accelerator::BackwardOfBatch(const Pass& pass) {
  State& s = *state_;
  if (use_distributed()) {
    s.CheckOneBatch(
        "backward",
        "call Backward(loss, weight) outside of Accumulate; the weight is the number of "
        "samples behind the mean loss",
        [&](const State::Entry& a, const State::Entry& b) {
          const State::Share share = State::ShareOf(a), other = State::ShareOf(b);
          if (s.accumulating) return share == other;
          return share.weight * other.total == other.weight * share.total &&
                 (share.total > 0) == (other.total > 0);
        });
  }
  const auto share = s.PresentShare(num_processes());
  if (!s.accumulating) return BackwardOfShare(pass, share.weight, share.total);
  if (!std::exchange(s.counted, true)) s.weight += share.weight;
  RunPassAndExchange(pass, share.weight / s.window_weight, share.weight);
}

void Accelerator::Backward(const Tensor& loss, double weight) {
  Check(!state_->accumulating, "backward",
        "the weight can't be given under Accumulate, where the loader gives it");
  Check(weight >= 0 && std::isfinite(weight), "backward",
        "the weight must be finite and at least 0 but is ", weight);
  double total = weight;
  group_->AllReduce(std::span(&total, 1));
  BackwardOfShare(PassOf(loss), weight, total);
}

// Runs the backward pass of a batch outside of Accumulate and exchanges its gradients at once.
void Accelerator::BackwardOfShare(const Pass& pass, double weight, double total) {
  *state_->sync = true;
  state_->weight += weight;
  const double part = total > 0 ? weight / total : 0;
  RunPassAndExchange(pass, part / static_cast<double>(gradient_accumulation_steps()), weight);
}

// Runs one backward pass, and exchanges gradients if that is due. A share of weight 0 counts
// nowhere, and its loss may be NaN.
void Accelerator::RunPassAndExchange(const Pass& pass, double seed, double loss_weight) {
  State& s = *state_;
  const bool exchange = *s.sync && !s.no_sync;
  s.phase->OnBackward();
  s.steps_before.clear();
  for (Optimizer* optimizer : s.optimizers) s.steps_before.push_back(optimizer->num_step_calls());
  if (use_distributed()) {
    s.UpdateReducer(group_, options_);
    s.reducer->BeforeBackward(exchange);
    if (device_.is_cpu()) s.rank_clock.Begin(group_->times());
  }
  try {
    if (scaler_ != nullptr) scaler_->BeginPass();
    if (loss_weight > 0) {
      s.losses.Add(pass(seed), loss_weight);
    } else if (scaler_ != nullptr) {  // the other ranks make a pass, which their scalers count
      scaler_->ScaleLossGradient(Tensor::Zeros({}, DType::kF32, device_));
    }
  } catch (...) {
    if (s.reducer != nullptr) s.reducer->Abandon();
    throw;
  }
  if (!exchange) return;

  ++s.step;
  s.stop_requested = std::exchange(stop_, false);
  double weight = s.weight;
  if (use_distributed()) {
    weight = ExchangeGradients();
  } else {
    s.losses.SetResult(weight);
  }
  RescaleWindow(weight);
  s.exchanged = true;
  if (!s.accumulating) s.CloseWindow();
}

// Ends the step together with the other ranks: sums the gradients, compares the ranks' records and
// sets the step's loss. Returns the weight of all ranks' shares.
double Accelerator::ExchangeGradients() {
  State& s = *state_;
  StepRecord mine = {.loss_sum = s.losses.Sum(),
                     .weight = s.weight,
                     .stop = s.stop_requested,
                     .step = s.step % (1 << 24),
                     .own_seconds = s.rank_clock.OwnSeconds()};
  if (options_.check_parameters_every > 0 && s.step % options_.check_parameters_every == 0) {
    for (const auto& arena : s.arenas) {
      const Tensor& values = arena->values();
      if (!values.impl()->storage->is_writable_by_others()) mine.checksum ^= Checksum(values);
    }
  }
  const std::vector<StepRecord> records = s.reducer->Finish(mine);
  double loss_sum = 0, weight = 0;
  bool same = true;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const StepRecord& record = records[rank];
    if (record.step != records[0].step) {
      throw Error(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("[backward] rank ", rank, " is at step ", record.step,
                               " but rank 0 is at step ", records[0].step),
                  "make the same calls in the same order on all ranks");
    }
    same = same && record.checksum == records[0].checksum;
    loss_sum += record.loss_sum;
    weight += record.weight;
    s.stop_requested = s.stop_requested || record.stop;
  }
  if (!same) CheckParametersAgree();
  s.rank_clock.EndStep(records);
  s.losses.SetLoss(LossHistory::Mean(loss_sum, weight));
  return weight;
}

// The passes assumed the weight `window_weight` for the whole window. If it turned out to be
// `weight`, the gradients are rescaled.
void Accelerator::RescaleWindow(double weight) {
  State& s = *state_;
  if (s.window_weight == 0 || weight <= 0 || weight == s.window_weight) return;
  if (!use_distributed()) s.CoverParameters();
  const float scale = static_cast<float>(s.window_weight / weight);
  for (const auto& arena : s.arenas) {
    for (const auto& entry : arena->entries()) {
      entry.parameter.tensor.impl()->mutable_gradient().scale *= scale;
    }
  }
  s.window_weight = weight;
}

void Accelerator::CheckParametersAgree() {
  if (!use_distributed()) return;
  State& s = *state_;
  s.CoverParameters();
  NamedValues sums;
  for (const auto& arena : s.arenas) {
    for (const auto& entry : arena->entries())
      sums.emplace_back("parameter " + entry.parameter.name + " with checksum",
                        std::to_string(Checksum(entry.parameter.tensor)));
  }
  lathe::CheckSame(
      *group_, ("step " + std::to_string(s.step) + ": processes have drifted apart").c_str(), sums,
      "check that all ranks run the same code, and that no machine's memory is damaged");
}

}  // namespace lathe
