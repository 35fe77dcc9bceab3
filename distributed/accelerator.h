// Accelerator trains the same loop in one process or in many, on one machine or several, with the
// same numbers. N ranks share each batch, and all of them get the gradients of the mean loss
// over the whole batch.
//
//   Accelerator accelerator;
//   accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
//   for (const Batch& batch : train) {
//     accelerator.Backward(model->Forward(batch).loss);
//     accelerator.ClipGradNorm(optimizer, 1.0);
//     optimizer.Step(); scheduler->Step(); optimizer.ZeroGrad();
//   }
//
// Names are those of Hugging Face's Accelerate; docs/distributed.md lists the differences and their
// reasons. A process is a rank of its job, and process_index() is its rank. The environment decides
// which processes form a job (distributed/rendezvous/environment.h). All of them make the same
// calls in the same order.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/core/trackers/tracker.h"
#include "lathe/data/datasets/data_loader.h"
#include "lathe/distributed/accelerator_options.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/graphs/graph_recorder.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"

namespace lathe {

// What training in several ranks costs: the time in collectives, and the slowest rank.
struct RankCosts {
  int64_t num_steps = 0;              // those measured; 0: nothing was
  CollectiveTimes::Seconds in_calls;  // this rank's
  int slowest_rank = 0;               // the one whose own work took longest
  double slowest_rank_extra = 0;      // seconds beyond the mean of the other ranks' work
};

class Accelerator {
 public:
  // The first Accelerator of a process waits until all ranks of the job have joined. Throws for
  // options that are out of range or unknown, and as JoinProcessGroup does.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;

  // Takes loaders, models, optimizers and schedulers, in any order, in one call or several. Moves
  // models to the device and sets their compute dtype. Gives all ranks the main process's
  // parameter values. Makes loaders yield this rank's shares. Preparing an object twice does no
  // harm. Throws on all ranks if their models, data or settings differ.
  void Prepare(auto&... objects) {
    static_assert((requires { PrepareOne(objects); } && ...),
                  "Prepare takes loaders, models, optimizers and schedulers");
    (PrepareOne(objects), ...);
  }

  // Runs the backward pass of a loss that is the mean over this rank's share of a batch. The
  // innermost prepared loader has just yielded that batch. Gradients become those of the mean over
  // the whole batch, divided by gradient_accumulation_steps. The loader knows the weight of a share
  // (BatchShare::weight): the number of its samples whose label counts, or the sum of their weights
  // (Dataset::Weight). Without a prepared loader, all ranks have the same weight.
  // A weighted mean is divided by the sum of the weights in the share. If the loader does not know
  // them, Backward(loss, weight) takes that sum. For the gradients of a sum over the whole batch,
  // pass the mean over the share times BatchShare::global_weight.
  // Throws if prepared loaders are read side by side and this rank's shares of their batches
  // differ. Under Accumulate, gradients become those of the mean over all samples of the window,
  // once its last batch is there. This also holds for a short last window and for unequal batches.
  void Backward(const Tensor& loss);
  // Does the same for a share of the given weight, such as the number of samples of which the loss
  // is the mean. An error under Accumulate.
  void Backward(const Tensor& loss, double weight);
  // Computes loss = forward(batch), then Backward(loss). Returns the loss, detached:
  //   accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
  // On a GPU both passes become a CUDA graph (distributed/batch_passes.h). Later batches of like
  // shapes repeat it without calling `forward`. So the work of `forward` may depend only on the
  // shapes of the batch, the numbers in Batch::on_device and the model. It may use no parameters
  // but the model's. Other outputs that it keeps, such as logits, hold stale numbers after a batch
  // that repeats a graph. They may also have rows of surplus sequences after the batch's own. Falls
  // back to eager execution for passes that can't be recorded, and for every batch with several
  // ranks.
  Tensor Backward(const Module& model, const Batch& batch,
                  const std::function<Tensor(const Batch&)>& forward);
  GraphStatistics graph_statistics() const;
  // Returns what several ranks have cost, from the first backward pass to the last exchange of
  // gradients. Nothing is measured on GPUs and with one rank.
  RankCosts rank_costs() const;

  // What a call has begun. It ends with the object.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(std::function<void()> end) : end_(std::move(end)) {}
    ~Scope() {
      if (end_) end_();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const std::function<void()> end_;
  };

  // Makes gradients accumulate. Declared for the work on one batch:
  //   auto accumulation = accelerator.Accumulate();
  // Only every gradient_accumulation_steps-th batch and the loader's last one exchange gradients.
  // With them alone prepared optimizers and schedulers make a step.
  Scope Accumulate();
  Scope Accumulate(const Module&) { return Accumulate(); }

  // While the object lives, Backward does not exchange gradients. The first Backward afterwards
  // exchanges them all.
  Scope NoSync();
  Scope NoSync(const Module&) { return NoSync(); }

  // Returns the mean loss over all ranks' samples, for the gradients that were summed last.
  double last_loss() const;
  // Returns last_loss() of each step since the last call, oldest first, but at most the last 1024.
  // On a device both functions wait for the losses.
  std::vector<double> TakeLosses();
  // Returns the unweighted losses of the passes of the last step: [n] float32 on their device, for
  // StepGuard. Undefined on the host.
  Tensor LastLosses() const;

  // Clip the gradients of all the optimizer's parameters. ClipGradNorm returns their norm. While
  // gradients still accumulate, both functions do nothing, and the norm is undefined. With "fp16"
  // they first divide the gradients by the loss's scale.
  Tensor ClipGradNorm(Optimizer& optimizer, double max_norm);
  void ClipGradValue(Optimizer& optimizer, double max_value);

  // Divides the gradients in the same way, without clipping, for code that reads them.
  void UnscaleGradients(Optimizer& optimizer);
  // Returns null unless mixed_precision is "fp16".
  const GradScaler* scaler() const { return scaler_.get(); }

  // Collectives; see distributed/groups/collectives.h. With one rank they return their argument.
  Tensor Gather(const Tensor& tensor);
  Tensor Reduce(const Tensor& tensor, const std::string& reduction = "sum") {
    return lathe::Reduce(*group_, tensor, reduction);
  }
  Tensor PadAcrossProcesses(const Tensor& tensor, int dim = 0, double pad_index = 0,
                            bool pad_first = false) {
    return lathe::PadAcrossProcesses(*group_, tensor, dim, pad_index, pad_first);
  }
  std::vector<std::string> GatherObject(const std::string& object) {
    return GatherStrings(*group_, object);
  }
  // Takes rows [B, ...] of this rank's share of the present batch. Returns the rows of the whole
  // batch, in its order and with every sample once. Throws outside of a prepared loader's loop or
  // for another B. Throws, too, if prepared loaders are read side by side and this rank's samples
  // have different places in their batches.
  Tensor GatherForMetrics(const Tensor& tensor);

  // Returns this rank's consecutive part of the elements. If they can't be divided evenly, the
  // first ranks get one more. With `apply_padding` all parts are equally long: a shorter one
  // repeats its last element.
  template <typename T>
  std::vector<T> SplitBetweenProcesses(const std::vector<T>& all,
                                       bool apply_padding = false) const {
    const int64_t world = num_processes(), rank = process_index();
    const int64_t each = std::ssize(all) / world, extra = std::ssize(all) % world;
    const auto begin = all.begin() + rank * each + std::min(rank, extra);
    std::vector<T> part(begin, begin + each + (rank < extra ? 1 : 0));
    if (apply_padding && extra > 0 && rank >= extra)
      part.push_back(part.empty() ? all.back() : part.back());
    return part;
  }

  void WaitForEveryone() { group_->Barrier(); }
  // Does the same, but is not a collective: a process may take any time before it calls this.
  void WaitWithoutTimeout();
  // While the main process holds an object, the others wait where they make theirs. Use it for work
  // that one rank does and the others reuse. The work may take any time.
  //   { auto first = accelerator.MainProcessFirst(); Download(); }
  Scope MainProcessFirst();
  Scope LocalMainProcessFirst();  // on each machine

  // Run `body` on some of the ranks only.
  void OnProcess(int process_index_of_it, auto&& body) const {
    if (process_index() == process_index_of_it) body();
  }
  void OnLocalProcess(int local_process_index_of_it, auto&& body) const {
    if (local_process_index() == local_process_index_of_it) body();
  }
  void OnMainProcess(auto&& body) const { OnProcess(0, body); }
  void OnLocalMainProcess(auto&& body) const { OnLocalProcess(0, body); }
  void OnLastProcess(auto&& body) const { OnProcess(num_processes() - 1, body); }
  // Prints a line on standard output, from one rank on each machine.
  void Print(const auto&... parts) const {
    if (is_local_main_process()) (std::cout << ... << parts) << std::endl;
  }

  // A flag that any rank can raise. CheckTrigger, a collective, returns true on all ranks if
  // one has raised the flag since the last check.
  void SetTrigger() { trigger_ = true; }
  bool CheckTrigger();
  // Raises a flag that travels with the next exchange of gradients. After that step
  // stop_requested() is true on all ranks, until the next step.
  void RequestStop() { stop_ = true; }
  bool stop_requested() const;

  // States what this process does from now on, such as "reading data", for the others' error
  // messages if it is lost. If it is never called, loops over prepared loaders state it. They say
  // "training" from the first backward pass on, and "evaluating" if gradients are off when the loop
  // begins.
  void SetPhase(const std::string& phase);

  // Returns a copy of `loader` that begins with batch n of its next epoch. `loader` itself goes on
  // with the epoch after that, at its first batch. Skipped batches are not read or made. Throws on
  // all ranks if they don't pass the same n.
  // A loop that goes on from LoadState needs no call: the next pass of each loader already begins
  // at the saved place. SaveState in a loop over the copy saves the copy's place.
  template <std::derived_from<Loader> L>
  L SkipFirstBatches(L& loader, int64_t n) {
    CheckSame({{"batches to skip", std::to_string(n)}});
    L rest = loader;
    loader.LeaveRestTo(rest, n);
    return rest;
  }

  // Saves all prepared and registered objects, which must still live, in the new folder `dir`,
  // which all ranks see. It is there as a whole or not at all. Empty: the next automatic name
  // (ProjectConfiguration). Returns the folder. Throws on all ranks if one of them fails. Throws
  // FailedPrecondition if there are gradients that no step has used.
  std::string SaveState(const std::string& dir = "");
  // Goes on from such a folder, with any number of ranks, if the same objects were prepared and
  // registered in the same order. Throws if there were more or fewer of a kind. Empty: from the
  // newest one of an automatic name. Returns the folder, or "" if there is none yet. Clears the
  // gradients of the prepared optimizers' parameters.
  std::string LoadState(const std::string& dir = "");
  // Adds an object with StateDict() and LoadStateDict(), which must outlive the Accelerator. Rank 0
  // saves it. The caller includes core/checkpoint/state_dict.h.
  void RegisterForCheckpointing(auto& object) {
    registered_.push_back({[&object] { return object.StateDict(); },
                           [&object](const StateDict& state) { object.LoadStateDict(state); }});
  }
  // The hook of a save runs on rank 0 and may add files to the folder; that of a load, on all
  // ranks.
  void RegisterSaveStatePreHook(StateHook hook) { save_hooks_.push_back(std::move(hook)); }
  void RegisterLoadStatePreHook(StateHook hook) { load_hooks_.push_back(std::move(hook)); }
  int64_t save_iteration() const { return options_.project.iteration; }

  // Throws on all ranks, with the first difference, if they don't hold the same values.
  void CheckSame(const NamedValues& values);

  // Throws on all ranks if their prepared parameters differ in any bit.
  void CheckParametersAgree();

  // Returns the model itself: no model is wrapped.
  auto& UnwrapModel(auto& model) const { return model; }
  // Starts the trackers of the options, with the object `config` as the training's
  // hyperparameters. Those of Lathe write into the folder `project` of the logging folder. Like
  // Log, it does something on the main process only, and any rank may leave it out.
  //   accelerator.InitTrackers("sst2", {{"learning_rate", 3e-5}});
  //   accelerator.Log({{"loss", loss}}, step);
  // A folder that can't be written to, or an error in a tracker, does not end the training. One
  // line on standard error tells of it. Throws if trackers run already, or for a `config` that is
  // no object.
  void InitTrackers(const std::string& project, const nlohmann::json& config);
  void InitTrackers(const std::string& project);  // without hyperparameters
  // Gives an object of numbers and texts to the trackers, with the step that they belong to, if
  // any. Does nothing before InitTrackers and after EndTraining. Throws for anything but an object.
  void Log(const nlohmann::json& values, std::optional<int64_t> step = std::nullopt);
  // Ends the trackers and waits for all ranks.
  void EndTraining();

  const std::string& mixed_precision() const { return options_.mixed_precision; }
  int64_t gradient_accumulation_steps() const { return options_.gradient_accumulation_steps; }
  void set_gradient_accumulation_steps(int64_t steps);
  bool split_batches() const { return options_.split_batches; }
  // Returns the device of prepared models. Prepared loaders bring batches there, all that ToDevice
  // takes (data/loading/to_device.h). Packed text stays on the host; models fetch what they need
  // from it.
  Device device() const { return device_; }
  const ProcessEnvironment& environment() const { return environment_; }
  ProcessGroup& group() const { return *group_; }
  int num_processes() const { return group_->size(); }
  int process_index() const { return group_->rank(); }
  int local_process_index() const { return environment().local_rank; }
  // Returns the process_index of this machine's local main process.
  int local_main_process_index() const { return local_main_; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  bool use_distributed() const { return num_processes() > 1; }
  // Returns "NO" (one rank), "MULTI_CPU" or "MULTI_GPU".
  std::string distributed_type() const {
    return !use_distributed() ? "NO" : device_.is_cpu() ? "MULTI_CPU" : "MULTI_GPU";
  }
  // Returns true if the present batch ends its accumulation window.
  bool sync_gradients() const;
  // Returns true if the last Step of the prepared optimizers did nothing. It does nothing while
  // gradients accumulate, or if float16 gradients have overflowed.
  bool optimizer_step_was_skipped() const;

 private:
  struct State;

  void PrepareOne(Module& model);
  void PrepareOne(Loader& loader);
  void PrepareOne(TextLoader& loader);
  void PrepareOne(Optimizer& optimizer);
  void PrepareOne(Scheduler& scheduler);
  void PrepareLoader(Loader& loader, NamedValues data);
  Scope TurnOf(int first, std::string key);
  void WriteState(const std::string& folder);
  void ReadState(const std::string& dir);
  // Runs `body` on this rank and throws on all ranks if it throws on one of them.
  void TryTogether(const std::function<void()>& body);
  void CheckForLostRanksInLoops();
  void CheckSameSettings();
  // Runs one backward pass from `seed`, the gradient of the loss, and returns the loss.
  using Pass = std::function<Tensor(double seed)>;
  Pass PassOf(const Tensor& loss);
  void BackwardOfBatch(const Pass& pass);
  void BackwardOfShare(const Pass& pass, double weight, double total);
  void RunPassAndExchange(const Pass& pass, double seed, double loss_weight);
  double ExchangeGradients();
  void RescaleWindow(double weight);

  AcceleratorOptions options_;
  std::shared_ptr<ProcessGroup> group_;
  Device device_ = {};
  ProcessEnvironment environment_;
  int local_main_ = 0;
  std::shared_ptr<GradScaler> scaler_;  // null unless mixed_precision is "fp16"
  // What SaveState saves besides prepared objects.
  std::vector<CheckpointedObject> registered_;
  std::vector<StateHook> save_hooks_, load_hooks_;
  std::unique_ptr<State> state_;
  bool trigger_ = false, stop_ = false;
};

}  // namespace lathe
