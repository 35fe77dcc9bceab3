// Accelerator: the loop's companion. The same loop trains in one process or in many, on one machine
// or several, with the same numbers: N processes share each batch, and the gradients of the mean
// loss over the whole batch arrive in all of them.
//
//   Accelerator accelerator;
//   accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
//   for (const Batch& batch : train) {
//     accelerator.Backward(model->Forward(batch).loss);
//     accelerator.ClipGradNorm(optimizer, 1.0);
//     optimizer.Step(); scheduler->Step(); optimizer.ZeroGrad();
//   }
//
// Names are those of Hugging Face's Accelerate; docs/accelerate.md lists what differs, and why.
// Which processes belong together the environment says (distributed/rendezvous/environment.h). All
// of them make the same calls in the same order.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/datasets/data_loader.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/reduce/reducer.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/step_graphs.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"

namespace lathe {

struct AcceleratorOptions {
  // 0: the environment's ACCELERATE_GRADIENT_ACCUMULATION_STEPS, else 1.
  int64_t gradient_accumulation_steps = 0;
  // "no" (float32), "bf16" or "fp16": bfloat16 or float16 activations, their gradients, and
  // products; parameters, their gradients, the optimizer's moments, sums inside products and the
  // loss stay float32. "fp16" is for GPUs; Backward scales the loss (optim/grad_scaler.h).
  // Empty: the environment's ACCELERATE_MIXED_PRECISION, else "no". The main process says on
  // standard error where the processor is slow in bfloat16 (see `notes`).
  std::string mixed_precision = "";
  GradScalerOptions grad_scaler = {};  // with "fp16"
  // "auto", "cpu", "cuda" or "cuda:1", as ChooseDevice (core/device_backend.h) takes it; of several
  // processes each takes the GPU that its local rank numbers ("cuda"), and "auto" is the CPU for
  // all unless each has one of its own. Empty: as the environment says (ReadDevice), else "auto".
  std::string device = "";
  // False: the main process prints no notes about a slow precision or unused GPUs.
  bool notes = true;
  // A loader's batch_size is that of the batch which all processes share. False: that of each
  // process, so that N of them make batches N times as large.
  bool split_batches = true;
  // Instead of what environment variables say. For the first Accelerator of a process.
  std::optional<ProcessEnvironment> environment = {};
  // How late another process may be, to join or to take part in a collective, before that is an
  // error; 0: as long as the environment says (ReadTimeout), 10 minutes if it doesn't. For the
  // first Accelerator of a process.
  std::chrono::milliseconds timeout = {};
  ReducerOptions reducer = {};
  // Each process sums up and keeps the gradients of its own part of the parameters only, and
  // updates that part with the moments for it; then they give each other the new values (ZeRO, the
  // first stage). The numbers are the same, but for the last bits of the gradients' norm. Prepared
  // optimizers' gradients can't be read then, and Step and GradNorm are collectives. The last
  // table, of which few rows are used, is shared out among processes of one machine; between
  // machines each updates all of it. Nothing changes with one process, nor, so far, on
  // GPUs: there each process updates everything.
  bool shard_optimizer = false;
  // With shard_optimizer, on one machine: prepared optimizers' parameters lie in memory that all
  // its processes have in common, from the first Backward on; new values need not be copied, and
  // memory holds them once. A loop that changes parameters by Step alone notices nothing. What else
  // changes them, one process must do for all, or all by writing the same values: multiplied in
  // each process, they are multiplied as many times. Nothing changes where processes can't read
  // each other's memory.
  bool share_parameters = false;
  // On a GPU: whether passes and prepared optimizers' updates are recorded as CUDA graphs, where
  // the loop allows it (see Backward).
  bool step_graphs = true;
  // Every so many steps the processes compare their parameters, bit by bit; 0: never.
  int64_t check_parameters_every = 100;
  // On a GPU, each product is computed by the same algorithm in every run: the same seed gives the
  // same bits (core/gemm_options.h; it holds for the whole process from then on). All else is
  // deterministic anyway, as is everything on the CPU.
  bool deterministic = false;
};

class Accelerator {
 public:
  // The first one of a process waits until all the job's processes have come. Throws for options
  // that are out of range or unknown, and as JoinProcessGroup does.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;

  // Any of loaders, models, optimizers and schedulers, in any order and in one call or several:
  // puts them on the device, makes loaders yield this process's shares, gives all processes the
  // values of the main one's parameters and sets the models' compute dtype. Twice is as good as
  // once. Throws on all processes if their models or data differ.
  template <typename... Objects>
  void Prepare(Objects&... objects) {
    (PrepareOne(objects), ...);
  }

  // Backward of a loss that is the mean over this process's share of the batch that the innermost
  // prepared loader has just yielded: gradients become those of the mean over the whole batch,
  // divided by gradient_accumulation_steps. Weights are the numbers of samples whose label counts;
  // without a prepared loader, all processes count alike. Throws where prepared loaders go side by
  // side and this process's shares of their batches differ.
  // Under Accumulate, gradients become those of the mean over all samples of the window instead,
  // a short last window and unequal batches included, once its last batch is there.
  void Backward(const Tensor& loss);
  // The same for a share of the given weight: as many samples, say, as the loss is the mean of.
  // Not under Accumulate.
  void Backward(const Tensor& loss, double weight);
  // loss = forward(batch), then Backward(loss); returns the loss, detached:
  //   accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
  // On a GPU both passes become a CUDA graph, which later batches of like shapes repeat without
  // calling `forward` (distributed/step_graphs.h): what it does must follow from the shapes of the
  // batch, the numbers in Batch::inputs and the model alone, whose parameters are all that it uses.
  // Other outputs that it keeps, logits say, hold stale numbers after a batch that repeats a graph,
  // and may have rows of surplus sequences behind the batch's.
  // What can't be recorded, and with several processes every batch, runs as it is.
  Tensor Backward(const Module& model, const Batch& batch,
                  const std::function<Tensor(const Batch&)>& forward);
  StepGraphStatistics graph_statistics() const;

  // While one lives, gradients accumulate; see Accumulate.
  class [[nodiscard]] Accumulation {
   public:
    explicit Accumulation(Accelerator& accelerator);
    ~Accumulation();
    Accumulation(const Accumulation&) = delete;
    Accumulation& operator=(const Accumulation&) = delete;

   private:
    Accelerator& accelerator_;
  };
  // Around the work on one batch:
  //   auto accumulation = accelerator.Accumulate();
  // Gradients are exchanged, and prepared optimizers and schedulers make a step, with every
  // gradient_accumulation_steps-th batch and with the loader's last one only.
  Accumulation Accumulate() { return Accumulation(*this); }
  Accumulation Accumulate(const Module&) { return Accumulation(*this); }

  // While one lives, Backward leaves gradients to this process, until the first Backward after it.
  class [[nodiscard]] LocalGradients {
   public:
    explicit LocalGradients(Accelerator& accelerator);
    ~LocalGradients();
    LocalGradients(const LocalGradients&) = delete;
    LocalGradients& operator=(const LocalGradients&) = delete;

   private:
    Accelerator& accelerator_;
  };
  LocalGradients NoSync() { return LocalGradients(*this); }
  LocalGradients NoSync(const Module&) { return LocalGradients(*this); }

  // The mean loss over all samples, of all processes, that went into the gradients as they were
  // exchanged last.
  double last_loss() const;
  // That of each step since the last call, oldest first; of many, the last 1024. On a device this
  // waits for it, as last_loss does.
  std::vector<double> TakeLosses();
  // [n] float32: the losses of the passes of the last step on their device, unweighted, for
  // StepGuard; undefined on the host.
  Tensor LastLosses() const;

  // The gradients' norm, over all parameters, and the clipping. While gradients still accumulate
  // nothing is done, and the result is undefined.
  // With "fp16" gradients are divided by the loss's scale first.
  Tensor ClipGradNorm(Optimizer& optimizer, double max_norm);
  void ClipGradValue(Optimizer& optimizer, double max_value);

  // The same without clipping, for who reads the gradients.
  void UnscaleGradients(Optimizer& optimizer);
  // Null unless mixed_precision is "fp16".
  const GradScaler* scaler() const;

  // Collectives; see distributed/groups/collectives.h. With one process they return what they were
  // given.
  Tensor Gather(const Tensor& tensor);
  Tensor Reduce(const Tensor& tensor, const std::string& reduction = "sum");
  Tensor PadAcrossProcesses(const Tensor& tensor, int dim = 0, double pad_index = 0,
                            bool pad_first = false);
  std::vector<std::string> GatherObject(const std::string& object);
  // Rows [B, ...] of this process's share of the present batch -> those of the whole batch, in its
  // order, every sample once. Throws outside of a prepared loader's loop, for another B, or where
  // prepared loaders go side by side and this process's samples have different places in them.
  Tensor GatherForMetrics(const Tensor& tensor);

  // This process's run of neighbours; the first ones get one more where it doesn't come out even.
  // With `apply_padding` all get as many: the last element is repeated.
  template <typename T>
  std::vector<T> SplitBetweenProcesses(const std::vector<T>& all,
                                       bool apply_padding = false) const {
    const auto [begin, end, most] = PartOf(static_cast<int64_t>(all.size()));
    std::vector<T> part(all.begin() + begin, all.begin() + end);
    while (apply_padding && !all.empty() && static_cast<int64_t>(part.size()) < most)
      part.push_back(part.empty() ? all.back() : part.back());
    return part;
  }

  void WaitForEveryone();
  // The same outside of any collective: what comes before may take one process any time.
  void WaitHoweverLong();
  // While one lives on the main process, the others wait where they make theirs: for what one
  // process should do and the others then find done. However long it takes.
  //   { auto first = accelerator.MainProcessFirst(); Download(); }
  class [[nodiscard]] ProcessTurn {
   public:
    ProcessTurn(ProcessGroup& group, int first, std::string key);
    ~ProcessTurn();
    ProcessTurn(const ProcessTurn&) = delete;
    ProcessTurn& operator=(const ProcessTurn&) = delete;

   private:
    ProcessGroup& group_;
    bool is_first_;
    std::string key_;
    int exceptions_ = std::uncaught_exceptions();
  };
  ProcessTurn MainProcessFirst();
  ProcessTurn LocalMainProcessFirst();  // on each machine

  // Runs `body` on some of the processes only.
  template <typename Body>
  void OnMainProcess(Body body) const {
    if (is_main_process()) body();
  }
  template <typename Body>
  void OnLocalMainProcess(Body body) const {
    if (is_local_main_process()) body();
  }
  template <typename Body>
  void OnLastProcess(Body body) const {
    if (is_last_process()) body();
  }
  template <typename Body>
  void OnProcess(int process_index_of_it, Body body) const {
    if (process_index() == process_index_of_it) body();
  }
  template <typename Body>
  void OnLocalProcess(int local_process_index_of_it, Body body) const {
    if (local_process_index() == local_process_index_of_it) body();
  }
  // A line on standard output, from one process on each machine.
  template <typename... Parts>
  void Print(const Parts&... parts) const {
    if (is_local_main_process()) (std::cout << ... << parts) << std::endl;
  }

  // A flag that any process can raise and all see: CheckTrigger is true on all of them if it was
  // raised on some since the last check.
  void SetTrigger() { trigger_ = true; }
  bool CheckTrigger();
  // Raises a flag that travels with the next exchange of gradients: stop_requested() is then true
  // on all processes after the same step, until the next.
  void RequestStop() { stop_ = true; }
  bool stop_requested() const;

  // What this process does from now on, for what the others say if it is lost: "reading data".
  // Without a word its loops over prepared loaders tell: "training" from the first backward pass
  // on, "evaluating" where gradients are off when the loop begins.
  void SetPhase(const std::string& phase);

  // `loader` once more, beginning with batch n of its next epoch; `loader` itself goes on with the
  // epoch after that. Nothing is read or made of what is skipped. All processes call it with the
  // same n, or it throws on all.
  DataLoader SkipFirstBatches(DataLoader& loader, int64_t n);

  // Throws on all processes if they don't hold the same values, with the first that differs.
  void CheckSame(const NamedValues& values);

  // Throws on all processes if their prepared parameters differ in a bit.
  void CheckParametersAgree();

  // No model is wrapped.
  template <typename M>
  M& UnwrapModel(M& model) const {
    return model;
  }
  // Waits for all processes.
  void EndTraining() { WaitForEveryone(); }

  const std::string& mixed_precision() const { return options_.mixed_precision; }
  int64_t gradient_accumulation_steps() const { return options_.gradient_accumulation_steps; }
  void set_gradient_accumulation_steps(int64_t steps);
  bool split_batches() const { return options_.split_batches; }
  // Where prepared models lie. Batches stay on the host: models fetch what they read of them.
  Device device() const { return device_; }
  const ProcessEnvironment& environment() const;
  ProcessGroup& group() const { return *group_; }
  int num_processes() const { return group_->size(); }
  int process_index() const { return group_->rank(); }
  int local_process_index() const { return environment().local_rank; }
  int local_main_process_index() const;  // process_index of this machine's local main process
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  bool use_distributed() const { return num_processes() > 1; }
  // "NO" (one process), "MULTI_CPU" or "MULTI_GPU".
  std::string distributed_type() const {
    return !use_distributed() ? "NO" : device_ == Device{} ? "MULTI_CPU" : "MULTI_GPU";
  }
  // Whether the present batch ends its window of accumulation.
  bool sync_gradients() const;
  // Whether the last Step of the prepared optimizers did nothing: gradients still accumulate, or
  // those in float16 have overflown.
  bool optimizer_step_was_skipped() const;

 private:
  struct State;
  struct Part {
    int64_t begin, end, most;
  };

  template <typename Object>
  void PrepareOne(Object& object) {
    if constexpr (std::is_base_of_v<Module, Object>) {
      PrepareModel(object);
    } else if constexpr (std::is_base_of_v<DataLoader, Object>) {
      PrepareLoader(object);
    } else if constexpr (std::is_base_of_v<Optimizer, Object>) {
      PrepareOptimizer(object);
    } else {
      static_assert(std::is_base_of_v<Scheduler, Object>,
                    "Prepare takes loaders, models, optimizers and schedulers");
      PrepareScheduler(object);
    }
  }
  void PrepareModel(Module& model);
  void PrepareLoader(DataLoader& loader);
  void PrepareOptimizer(Optimizer& optimizer);
  void PrepareScheduler(Scheduler& scheduler);
  Part PartOf(int64_t n) const;
  // One backward pass from the given gradient of the loss, which it returns.
  using Pass = std::function<Tensor(double seed)>;
  Pass PassOf(const Tensor& loss);
  void BackwardOfBatch(const Pass& pass);
  void BackwardOfShare(const Pass& pass, double weight, double total);
  void Exchange(const Pass& pass, double seed, double loss_weight);
  void CheckRecords(const std::vector<StepRecord>& records);

  AcceleratorOptions options_;
  std::shared_ptr<ProcessGroup> group_;
  Device device_ = {};
  std::unique_ptr<State> state_;
  bool trigger_ = false, stop_ = false;
};

}  // namespace lathe
