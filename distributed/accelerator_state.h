// The state of an Accelerator, for its source files.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <exception>

#include "lathe/core/base/error.h"
#include "lathe/core/trackers/tracker_list.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/batch_passes.h"
#include "lathe/distributed/loss_history.h"
#include "lathe/distributed/reduce/reducer.h"

namespace lathe {

// Returns a checksum of 48 bits. It changes if any single bit of the tensor flips.
uint64_t Checksum(const Tensor& tensor);

// Tells the other ranks what this process is doing, for their error messages ("rank 1 has ended
// while training"). It follows the process's loops over prepared loaders and its backward passes.
// It sends a phase when it changes, a few times in an epoch.
class LoopPhase {
 public:
  // Phases go to those of `groups` that still exist.
  explicit LoopPhase(std::vector<std::weak_ptr<ProcessGroup>> groups)
      : groups_(std::move(groups)) {}
  // Call it when a pass over a prepared loader has begun or ended.
  void FollowPasses(const LoaderPasses& passes);
  // Call it for each backward pass: the innermost loop then counts as training.
  void OnBackward();
  // States the phase in the program's own words. Loops no longer change it then.
  void Set(const std::string& phase);

 private:
  void SendIfNew(const char* phase);
  void Send(const std::string& phase);

  std::vector<std::weak_ptr<ProcessGroup>> groups_;
  std::vector<std::pair<std::shared_ptr<const LoaderPasses::Entry>, const char*>>
      loops_;                   // the innermost last
  const char* sent_ = nullptr;  // the last of the phases of loops that was sent
  bool set_by_program_ = false;
};

// Measures a rank's steps. Its own work is all that it does in a step but wait for collectives.
class RankClock {
 public:
  // Starts the clock at the first step; later calls do nothing. `times`: those of the collectives'
  // group.
  void Begin(CollectiveTimes& times);
  // Returns the seconds of this rank's own work since the last step. 0 before Begin.
  double OwnSeconds() const;
  // Ends a step with the records of all ranks. Does nothing before Begin.
  void EndStep(const std::vector<StepRecord>& records);
  RankCosts costs() const;

 private:
  using Clock = std::chrono::steady_clock;
  CollectiveTimes* times_ = nullptr;
  CollectiveTimes::Seconds at_begin_, at_end_of_step_;
  Clock::time_point end_of_step_;
  int64_t num_steps_ = 0;
  std::vector<double> own_seconds_;  // of each rank, over all steps
};

struct Accelerator::State {
  std::shared_ptr<NcclGroup> device_group;  // null: parameters lie on the host
  int exceptions = std::uncaught_exceptions();
  std::shared_ptr<LoaderPasses> passes = std::make_shared<LoaderPasses>();
  std::shared_ptr<LoopPhase> phase;
  std::vector<Parameter> parameters;  // of prepared models, some of them twice
  // What SaveState saves, in the order of Prepare. `passes` knows the loaders.
  std::vector<Module*> models;
  std::vector<Optimizer*> optimizers;
  std::vector<Scheduler*> schedulers;
  TrackerList trackers;  // those that run; none but on the main process
  // The arenas of prepared optimizers, then those of the remaining parameters.
  std::vector<std::shared_ptr<ParameterArena>> arenas;
  // Says how the update of each arena is sharded. Null or missing at the end: it is not.
  std::vector<std::shared_ptr<CurrentShards>> shards;
  std::shared_ptr<bool> sync = std::make_shared<bool>(true);
  bool accumulating = false;
  bool no_sync = false;  // true while the object of NoSync lives
  bool counted = false;  // true if `weight` includes the present batch
  // True once the values below have been exchanged. They stay until CloseWindow, since the same
  // batch may have more losses.
  bool exchanged = false;
  int64_t micro_step = 0;

  // The losses and weights behind the gradients since the last exchange.
  LossHistory losses;
  double weight = 0;
  double window_weight = 0;  // assumed by Backward's seeds; 0: no window is open
  bool stop_requested = false;
  int64_t step = 0;
  RankClock rank_clock;
  std::unique_ptr<BatchPasses> graphed_passes;  // null: nothing is recorded
  std::unique_ptr<Reducer> reducer;
  bool renew_reducer = false;  // before the next backward pass

  // True once SaveState or LoadState has seen which automatic names there are.
  bool knows_states = false;

  // Each optimizer's num_step_calls at the last backward pass; empty: there was none.
  std::vector<int64_t> steps_before;
  // Returns true if there are gradients that no exchange has completed, or that no step has used.
  bool HasOpenWindow() const {
    if (micro_step != 0 || (weight != 0 && !exchanged)) return true;
    for (size_t i = 0; i < steps_before.size(); ++i) {
      if (steps_before[i] != optimizers[i]->num_step_calls()) continue;
      for (const auto& entry : optimizers[i]->arena().entries()) {
        const LeafGradient& gradient = entry.parameter.tensor.impl()->gradient();
        if (gradient.buffer != nullptr && !gradient.is_stale) return true;
      }
    }
    return false;
  }
  // Begins a new window. The program's ZeroGrad, which has no effect within one, has it again.
  void DropWindow() {
    exchanged = true;
    CloseWindow();
    micro_step = 0;
    *sync = true;
    steps_before.clear();
  }
  void CloseWindow() {
    if (!std::exchange(exchanged, false)) return;
    losses.CloseStep();
    weight = window_weight = 0;
  }

  // Adds a prepared object unless it is there already.
  template <typename Object>
  static void Remember(std::vector<Object*>& objects, Object& object) {
    if (std::ranges::find(objects, &object) == objects.end()) objects.push_back(&object);
  }

  using Entry = LoaderPasses::Entry;
  // Returns the innermost pass; null outside of loops, and where it has given no batch.
  const Entry* pass() const {
    const bool has_batch = !passes->entries.empty() && passes->entries.back()->batch != nullptr;
    return has_batch ? passes->entries.back().get() : nullptr;
  }
  // The weights of this rank's share of a batch and of the whole batch, and the number of batches
  // that follow it.
  struct Share {
    double weight, total;
    int64_t batches_left;
    bool operator==(const Share&) const = default;
  };
  static Share ShareOf(const Entry& entry) {
    return {entry.batch->share.weight, entry.batch->share.global_weight, entry.batches_left};
  }
  Share PresentShare(int world_size) const {
    return pass() != nullptr ? ShareOf(*pass())
                             : Share{1, static_cast<double>(world_size), LoaderPasses::kUnknown};
  }

  // Throws if it isn't clear to which batch a call belongs. With nested loops, it is the innermost
  // loop's batch. With passes side by side it can't be known, unless `same` finds that it makes no
  // difference. Each rank decides for itself; if only some throw, the others report those as
  // lost.
  void CheckOneBatch(const char* what, const char* hint,
                     const std::function<bool(const Entry&, const Entry&)>& same) const {
    for (const auto& entry : passes->entries) {
      const Entry& last = *passes->entries.back();
      if (entry.get() == &last || entry->last_batch_at < last.began_at) continue;
      if (entry->batch == nullptr || last.batch == nullptr || same(*entry, last)) continue;
      throw Error(
          absl::StatusCode::kFailedPrecondition,
          std::string("[") + what +
              "] two prepared loaders are read side by side, and this process's shares of their "
              "batches differ",
          hint);
    }
  }

  // Makes an arena of the trained parameters that no prepared optimizer has.
  void CoverParameters();
  // Makes a reducer, and divides the sharded updates, unless the present ones are still good.
  void UpdateReducer(const std::shared_ptr<ProcessGroup>& group, const AcceleratorOptions& options);
};

}  // namespace lathe
