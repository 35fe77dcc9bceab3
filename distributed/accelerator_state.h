// What an Accelerator keeps, for its sources.
#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/loop_phase.h"
#include "lathe/distributed/loss_history.h"
#include "lathe/distributed/reduce/shared_copies.h"
#include "lathe/distributed/step_graphs.h"

namespace lathe {

// Each rank has a stripe of each of the parts (core/element_range.h).
std::shared_ptr<const UpdateShares> MakeUpdateShares(std::shared_ptr<ProcessGroup> group,
                                                     std::vector<ElementRange> parts);

// Of every bit: any single one that flips changes it. 48 bits.
uint64_t Checksum(const Tensor& tensor);

struct Accelerator::State {
  ProcessEnvironment environment;
  int local_main = 0;
  std::shared_ptr<NcclGroup> device_group;  // null: parameters lie on the host
  int exceptions = std::uncaught_exceptions();
  std::shared_ptr<LoaderPasses> passes = std::make_shared<LoaderPasses>();
  std::shared_ptr<LoopPhase> phase;
  std::vector<Parameter> parameters;                    // of prepared models
  std::vector<std::shared_ptr<ParameterArena>> arenas;  // of prepared optimizers, then of the rest
  // How the update of each of the arenas is shared out; null, or missing at the end: not at all.
  std::vector<std::shared_ptr<PresentShares>> shares;
  std::shared_ptr<bool> sync = std::make_shared<bool>(true);
  bool accumulating = false, local = false;
  bool counted = false;    // the batch at hand, in `weight`
  bool exchanged = false;  // what is below has been; it stays for more losses of the same batch
  int64_t micro_step = 0;

  // What has gone into the gradients since the last exchange.
  LossHistory losses;
  double weight = 0;
  double window_weight = 0;  // that Backward's seeds assume; 0: none is open
  bool stop_requested = false;
  int64_t step = 0;
  std::shared_ptr<GradScaler> scaler;  // null but for float16
  std::unique_ptr<StepGraphs> graphs;  // null: none
  std::unique_ptr<Reducer> reducer;
  bool renew_reducer = false;  // before the next backward pass
  std::vector<bool> trained;   // when the reducer was made

  void CloseWindow() {
    if (!std::exchange(exchanged, false)) return;
    losses.CloseStep();
    weight = window_weight = 0;
  }

  struct Share {
    double weight, total;
    int64_t batches_left;
  };
  const LoaderPasses::Entry* pass() const {
    return passes->entries.empty() ? nullptr : passes->entries.back().get();
  }
  // This process's part of the batch at hand.
  Share PresentShare(int world_size) const {
    const LoaderPasses::Entry* entry = pass();
    if (entry == nullptr || entry->batch == nullptr || !entry->batch->whole) {
      return {1, static_cast<double>(world_size), INT64_MAX / 2};
    }
    return {entry->batch->whole->weight, entry->batch->whole->total_weight, entry->batches_left};
  }

  // Loops within loops are about the innermost one's batch. Of passes side by side nobody can tell
  // which one it is, unless `same` says that it makes no difference. Each process tells for itself:
  // if some throw, the others miss them.
  using Entry = LoaderPasses::Entry;
  void CheckOneBatch(const char* what, const char* hint,
                     const std::function<bool(const Entry&, const Entry&)>& same) const {
    for (const auto& entry : passes->entries) {
      const Entry& last = *passes->entries.back();
      if (entry.get() == &last || entry->went_on < last.begun) continue;
      if (entry->batch == nullptr || last.batch == nullptr || same(*entry, last)) continue;
      throw Error(absl::StatusCode::kFailedPrecondition,
                  std::string("[") + what +
                      "] two prepared loaders go side by side, and this process's shares of their "
                      "batches differ",
                  hint);
    }
  }

  // Arenas for parameters that no prepared optimizer has.
  void CoverParameters() {
    std::vector<Parameter> rest;
    for (const Parameter& p : parameters) {
      const bool covered = std::any_of(arenas.begin(), arenas.end(), [&](const auto& arena) {
        return std::any_of(
            arena->entries().begin(), arena->entries().end(),
            [&](const auto& entry) { return entry.parameter.tensor.impl() == p.tensor.impl(); });
      });
      if (!covered && p.tensor.requires_grad()) rest.push_back(p);
    }
    if (rest.empty()) return;
    arenas.push_back(ParameterArena::Of(rest));
    renew_reducer = true;
  }

  // Which parameters are trained: those of a reducer must stay the same.
  std::vector<bool> Trained() const {
    std::vector<bool> now;
    for (const Parameter& p : parameters) now.push_back(p.tensor.requires_grad());
    return now;
  }

  void UpdateReducer(const std::shared_ptr<ProcessGroup>& group, const ReducerOptions& options,
                     bool share_parameters) {
    std::vector<bool> now = Trained();
    if (reducer != nullptr && !renew_reducer && now == trained && !reducer->Outdated()) return;
    if (reducer != nullptr) reducer->CountSumsOnce();
    reducer = nullptr;  // its hooks go first
    CoverParameters();
    Check(!arenas.empty(), "backward", "Prepare the model and its optimizer first");
    shares.resize(arenas.size());
    std::vector<bool> shared_out;
    for (const auto& present : shares) shared_out.push_back(present != nullptr);
    reducer = std::make_unique<Reducer>(group, arenas, options, shared_out, device_group);
    trained = std::move(now);
    renew_reducer = false;
    for (size_t i = 0; i < arenas.size(); ++i) {
      if (shares[i] == nullptr) continue;
      std::vector<ElementRange> parts = reducer->SharedParts(i);
      std::shared_ptr<const UpdateShares>& present = shares[i]->now;
      if (present == nullptr ? !parts.empty() : present->parts != parts)
        present = MakeUpdateShares(group, parts);
      if (!share_parameters || present == nullptr) continue;
      Storage& storage = *arenas[i]->values().impl()->storage;
      if (!storage.is_shared()) group->ShareMemory(storage);
      if (storage.is_shared()) ShareCopies(*group, *arenas[i]);
    }
  }
};

}  // namespace lathe
