// How an Accelerator works, and where it saves its states.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/trackers/tracker.h"
#include "lathe/distributed/reduce/gradient_buckets.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/optim/grad_scaler.h"

namespace lathe {

struct StateDict;  // core/checkpoint/state_dict.h

struct ProjectConfiguration {
  std::string project_dir = "";
  // SaveState() writes project_dir/checkpoints/checkpoint_0, then checkpoint_1 and so on.
  // LoadState() reads the newest one that is whole. After it, or after LoadState of one by its
  // name, SaveState() goes on with the next number that is free.
  bool automatic_checkpoint_naming = false;
  // With automatic names: how many states stay. The oldest is deleted once a new one is whole.
  std::optional<int64_t> total_limit = {};
  int64_t iteration = 0;  // the number of the next automatic name
  // Where trackers write, in a folder with the name that InitTrackers gets; empty: project_dir.
  std::string logging_dir = "";
};

// An object of the program's own whose state is saved, too.
struct CheckpointedObject {
  std::function<StateDict()> state;
  std::function<void(const StateDict&)> load;
};

// Called with the folder, before a state is written there or read from there.
using StateHook = std::function<void(const std::string& dir)>;

struct AcceleratorOptions {
  // 0: the environment's ACCELERATE_GRADIENT_ACCUMULATION_STEPS, else 1.
  int64_t gradient_accumulation_steps = 0;
  // The dtype of activations, their gradients and products: "no" (float32), "bf16" (bfloat16) or
  // "fp16" (float16), in models that read Module::compute_dtype. Lathe's own and
  // nn::TransformerEncoder do, and return float32; other layers compute in their input's dtype.
  // Parameters, their gradients, the optimizer's moments, sums inside products and the loss stay
  // float32. "fp16" needs a GPU, and Backward then scales the loss (optim/grad_scaler.h). Empty:
  // the environment's ACCELERATE_MIXED_PRECISION, else "no". The main process prints a note on
  // standard error if the processor is slow in bfloat16 (see `notes`).
  std::string mixed_precision = "";
  GradScalerOptions grad_scaler = {};  // with "fp16"
  // "auto", "cpu", "cuda" or "cuda:1", as ChooseDevice (core/device_backend.h) takes it. With
  // several ranks, "cuda" gives each rank the GPU with the number of its local rank, and
  // "cuda:1" is an error. "auto" is then the CPU for all unless each rank has a GPU of its own.
  // Empty: the environment decides (ReadDevice).
  std::string device = "";
  // False: the main process prints no notes about a slow precision or unused GPUs.
  bool notes = true;
  // True: a loader's batch_size is that of the batch that all ranks share. False: it is that of
  // each rank, so that N ranks make batches N times as large.
  bool split_batches = true;
  // The three options below take effect with the first Accelerator of a process.
  // Replaces the environment variables.
  std::optional<ProcessEnvironment> environment = {};
  // The time that another rank may be late, to join or to take part in a collective. After that
  // it is an error. 0: the environment decides (ReadTimeout), which means 10 minutes if it says
  // nothing.
  std::chrono::milliseconds timeout = {};
  // How long another rank may give no sign of life, which each rank's own thread gives. 0: the
  // environment's LATHE_HEARTBEAT_TIMEOUT, else 30 s, or `timeout` if that is shorter. Rank 0's
  // counts for all.
  std::chrono::milliseconds heartbeat_timeout = {};
  ReducerOptions reducer = {};
  // Shards the optimizer's work over the ranks (ZeRO, stage 1). Each rank sums up and
  // keeps the gradients of its own stripes of the parameters only. It updates those and keeps
  // their moments. Then the ranks give each other the new values.
  // The numbers are the same, but for the last bits of the gradients' norm. The gradients of
  // prepared optimizers can't be read then, and Step and GradNorm are collectives. The last table,
  // of which few rows are used, is sharded only over the ranks of one machine. Between
  // machines each rank updates all of it. The option has no effect with one rank or, so far,
  // on GPUs.
  bool shard_optimizer = false;
  // With shard_optimizer, on one machine: keeps the parameters of prepared optimizers in memory
  // that all ranks have in common. It begins with the first Backward. New values need not be
  // copied then, and memory holds them once.
  // A loop that changes parameters by Step alone notices nothing. Any other change must be made by
  // one rank for all, or by all ranks with the same values. A factor that each rank
  // applies is applied several times. Nothing changes if processes can't read each other's memory.
  bool share_parameters = false;
  // On a GPU: records passes and prepared optimizers' updates as CUDA graphs, where the loop allows
  // it (see Backward).
  bool step_graphs = true;
  // The ranks compare their parameters, bit by bit, every so many steps; 0: never.
  int64_t check_parameters_every = 100;
  // On a GPU: computes each product by the same algorithm in every run, so that the same seed gives
  // the same bits. The setting then holds for the whole process (core/base/gemm_options.h). All
  // other work is deterministic anyway, as is everything on the CPU.
  bool deterministic = false;
  ProjectConfiguration project = {};
  // Where Log writes: "tensorboard", "jsonl" or "all" (core/trackers/). They need
  // project.logging_dir or project.project_dir.
  std::vector<std::string> log_with = {};
  // Trackers of the program's own, besides those.
  std::vector<std::shared_ptr<Tracker>> trackers = {};
};

}  // namespace lathe
