#include "lathe/distributed/accelerator.h"

#include <algorithm>
#include <cstdlib>

#include "lathe/core/autograd.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/core/version.h"
#include "lathe/distributed/accelerator_state.h"
#include "lathe/distributed/job/dataset_digests.h"
#include "lathe/distributed/job/job.h"

namespace lathe {
namespace {

// Returns `precision` or, if it is empty, what the environment says.
std::string PrecisionOrDefault(std::string precision) {
  if (precision.empty()) {
    const char* set = std::getenv("ACCELERATE_MIXED_PRECISION");
    precision = set == nullptr || *set == 0 ? "no" : set;
  }
  Check(precision == "no" || precision == "bf16" || precision == "fp16", "accelerator",
        "mixed_precision must be \"no\", \"bf16\" or \"fp16\" but is \"", precision, "\"");
  return precision;
}

void CheckTrackers(AcceleratorOptions& options) {
  options.log_with = TrackerNames(options.log_with, "[accelerator] log_with");
  if (!options.log_with.empty() && options.project.logging_dir.empty() &&
      options.project.project_dir.empty()) {
    throw InvalidArgument("[accelerator] log_with needs a folder to write to",
                          "set logging_dir or project_dir of AcceleratorOptions::project");
  }
  for (const auto& tracker : options.trackers)
    Check(tracker != nullptr, "accelerator", "a tracker is null");
}

// Phases of a process.
constexpr char kTraining[] = "training", kEvaluating[] = "evaluating";
// A loop without a backward pass so far. It may still switch gradients off and evaluate.
constexpr char kLooping[] = "in a loop over a prepared loader";
constexpr char kBetween[] = "between loops over prepared loaders";

}  // namespace

uint64_t Checksum(const Tensor& tensor) {
  const Tensor on_host = tensor.To(Device{});
  const std::span<const float> values = on_host.values<float>();
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i)
    sum += std::bit_cast<uint32_t>(values[i]) * (2 * uint64_t{i} + 1);
  return sum & ((uint64_t{1} << 48) - 1);
}

Accelerator::Accelerator(AcceleratorOptions options)
    : options_(std::move(options)), state_(std::make_unique<State>()) {
  if (options_.gradient_accumulation_steps == 0) {
    options_.gradient_accumulation_steps = ReadAccumulationSteps();
  }
  set_gradient_accumulation_steps(options_.gradient_accumulation_steps);
  const std::string precision = options_.mixed_precision =
      PrecisionOrDefault(options_.mixed_precision);
  CheckTrackers(options_);
  const std::string wish = options_.device.empty() ? ReadDevice() : options_.device;
  if (options_.timeout.count() == 0) options_.timeout = ReadTimeout();
  if (options_.heartbeat_timeout.count() == 0)
    options_.heartbeat_timeout = ReadHeartbeatTimeout().value_or(std::chrono::milliseconds(0));
  const Job& job = JoinJobOnce(options_.environment, options_.timeout, options_.heartbeat_timeout);
  if (options_.environment) {
    Check(options_.environment->rank == job.environment.rank &&
              options_.environment->world_size == job.environment.world_size,
          "accelerator", "this process is already rank ", job.environment.rank, " of ",
          job.environment.world_size, " and can't become rank ", options_.environment->rank, " of ",
          options_.environment->world_size);
  }
  JobDevice chosen = ChooseJobDevice(job, wish, options_.timeout);
  device_ = chosen.device;
  state_->device_group = std::move(chosen.group);
  if (options_.notes && job.environment.rank == 0) {
    for (const std::string& note : {chosen.note, SlowPrecisionNote(precision, device_)}) {
      if (!note.empty()) std::cerr << "note: " << note << std::endl;
    }
  }
  if (options_.deterministic) UseDeterministicGemms(true);
  if (precision == "fp16") {
    if (device_.is_cpu()) {
      throw InvalidArgument(
          "[accelerator] mixed_precision fp16 needs a GPU, and this is the CPU",
          "use " + OptionName("mixed_precision") + " bf16, which works on the CPU");
    }
    scaler_ = std::make_shared<GradScaler>(options_.grad_scaler);
  }
  if (!device_.is_cpu() && options_.step_graphs) {
    state_->graphed_passes = std::make_unique<BatchPasses>(device_, scaler_);
  }
  environment_ = job.environment;
  local_main_ = job.local_main;
  group_ = job.group;
  state_->phase = std::make_shared<LoopPhase>(
      std::vector<std::weak_ptr<ProcessGroup>>{group_, state_->device_group});
  state_->passes->changed = [phase = state_->phase, passes = state_->passes.get()] {
    phase->FollowPasses(*passes);
  };
  if (use_distributed()) CheckForLostRanksInLoops();
  CheckSameSettings();
}

// Sets checks for lost ranks: before each batch of a loop over a prepared loader, and after each op
// in the loop.
void Accelerator::CheckForLostRanksInLoops() {
  const auto check = [group = std::weak_ptr(group_)] {
    if (const auto present = group.lock()) present->CheckPeers();
  };
  state_->passes->before_batch = [check, passes = std::weak_ptr(state_->passes)] {
    SetAfterOpHook([check, passes] {
      const auto present = passes.lock();
      if (present != nullptr && !present->entries.empty()) check();
    });
    check();
  };
}

void Accelerator::CheckSameSettings() {
  CheckSame({{"Lathe version", kVersion},
             {"program with build id", BuildId()},
             {"device", device_.is_cpu() ? "cpu" : "cuda"},
             {"mixed_precision", mixed_precision()},
             {"gradient_accumulation_steps", std::to_string(gradient_accumulation_steps())},
             {"split_batches", options_.split_batches ? "true" : "false"},
             {"shard_optimizer", options_.shard_optimizer ? "true" : "false"},
             {"share_parameters", options_.share_parameters ? "true" : "false"},
             {"init_scale", ExactText(options_.grad_scaler.init_scale)},
             {"growth_factor", ExactText(options_.grad_scaler.growth_factor)},
             {"backoff_factor", ExactText(options_.grad_scaler.backoff_factor)},
             {"growth_interval", std::to_string(options_.grad_scaler.growth_interval)}});
}

Accelerator::~Accelerator() {
  if (state_ == nullptr || std::uncaught_exceptions() <= state_->exceptions) return;
  group_->Abandon();
  if (state_->device_group != nullptr) state_->device_group->Abandon();
}
Accelerator::Accelerator(Accelerator&&) noexcept = default;

void Accelerator::SetPhase(const std::string& phase) { state_->phase->Set(phase); }

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  Check(steps >= 1, "accelerator", "gradient_accumulation_steps must be at least 1 but is ", steps);
  options_.gradient_accumulation_steps = steps;
}

void LoopPhase::FollowPasses(const LoaderPasses& passes) {
  const auto& entries = passes.entries;
  std::erase_if(loops_, [&](const auto& loop) {
    return std::find(entries.begin(), entries.end(), loop.first) == entries.end();
  });
  // A pass that has just begun is the last entry.
  if (loops_.size() < entries.size())
    loops_.emplace_back(entries.back(), GradEnabled() ? kLooping : kEvaluating);
  SendIfNew(loops_.empty() ? kBetween : loops_.back().second);
}

void LoopPhase::OnBackward() {
  if (!loops_.empty()) loops_.back().second = kTraining;
  SendIfNew(kTraining);
}

void LoopPhase::Set(const std::string& phase) {
  set_by_program_ = true;
  Send(phase);
}

void LoopPhase::SendIfNew(const char* phase) {
  if (!set_by_program_ && std::exchange(sent_, phase) != phase) Send(phase);
}

void LoopPhase::Send(const std::string& phase) {
  for (const auto& group : groups_) {
    if (const auto present = group.lock()) present->SetPhase(phase);
  }
}

// --- Prepare ---

void Accelerator::PrepareOne(Module& model) {
  State::Remember(state_->models, model);
  model.To(device_);
  model.SetComputeDType(mixed_precision() == "bf16"   ? DType::kBF16
                        : mixed_precision() == "fp16" ? DType::kF16
                                                      : DType::kF32);
  const std::vector<Parameter> parameters = model.Parameters();
  NamedValues layout;
  for (const Parameter& p : parameters) {
    Check(p.tensor.allocated(), "prepare", "parameter ", p.name,
          " has no values; Initialize the model or load its weights first");
    layout.emplace_back("parameter " + p.name, ToString(p.tensor.shape()));
    state_->parameters.push_back(p);
  }
  state_->renew_reducer = true;
  if (!use_distributed()) return;
  CheckSame(layout);
  CheckSame(model.Settings());
  // Usually all ranks have read the same file, so nothing needs to be sent. Checksums compare
  // bits, so NaN and infinity compare like any number.
  uint64_t sum = 0;
  for (const Parameter& p : parameters) sum = sum * 31 + Checksum(p.tensor);
  const std::vector<std::string> sums = GatherStrings(*group_, std::to_string(sum));
  if (std::all_of(sums.begin(), sums.end(), [&](const auto& s) { return s == sums[0]; })) return;
  for (const Parameter& p : parameters) Broadcast(*group_, p.tensor);
}

void Accelerator::PrepareOne(Loader& loader) {
  PrepareLoader(loader, use_distributed() ? loader.Facts() : NamedValues());
}

void Accelerator::PrepareOne(TextLoader& loader) {
  if (!use_distributed() || !loader.has_dataset()) return PrepareOne(static_cast<Loader&>(loader));
  PrepareLoader(loader, DatasetDigests(loader.dataset()));
}

void Accelerator::PrepareLoader(Loader& loader, NamedValues data) {
  loader.Shard(process_index(), num_processes(), options_.split_batches, state_->passes);
  loader.SetDevice(device_);
  if (!use_distributed()) return;
  const DataLoaderOptions& o = loader.options();
  data.insert(data.end(), {{"batch_size", std::to_string(o.batch_size)},
                           {"shuffle", std::to_string(o.shuffle)},
                           {"shuffle_buffer", std::to_string(o.shuffle_buffer)},
                           {"group_by_length", std::to_string(o.group_by_length)},
                           {"even_tokens", std::to_string(o.even_tokens)},
                           {"drop_last", std::to_string(o.drop_last)},
                           {"data seed", std::to_string(o.seed)},
                           {"samples of the sampler", std::to_string(o.sampler.num_samples)},
                           {"epoch", std::to_string(loader.epoch())}});
  CheckSame(data);
}

void Accelerator::PrepareOne(Optimizer& optimizer) {
  State::Remember(state_->optimizers, optimizer);
  optimizer.StepOnlyIf(state_->sync);
  if (scaler_ != nullptr) optimizer.UseGradScaler(scaler_);
  optimizer.UseGraphs(options_.step_graphs);
  auto& arenas = state_->arenas;
  const auto& arena = optimizer.shared_arena();
  // Optimizers of the same parameters share one arena.
  const auto known = std::find_if(arenas.begin(), arenas.end(), [&](const auto& other) {
    return other->values().impl()->storage == arena->values().impl()->storage;
  });
  const size_t index = static_cast<size_t>(known - arenas.begin());
  if (known == arenas.end()) arenas.push_back(arena);
  state_->shards.resize(arenas.size());
  auto& shards = state_->shards[index];
  if (options_.shard_optimizer && use_distributed() && device_.is_cpu() && shards == nullptr)
    shards = std::make_shared<CurrentShards>();
  optimizer.ShardUpdates(shards);
  state_->renew_reducer = true;
  CheckSame(optimizer.Settings());
}

// No more needs to be set up: the scheduler skips its step whenever its optimizer skips one.
void Accelerator::PrepareOne(Scheduler& scheduler) {
  State::Remember(state_->schedulers, scheduler);
  CheckSame(scheduler.Settings());
}

void Accelerator::CheckSame(const NamedValues& values) {
  if (!use_distributed()) return;
  lathe::CheckSame(*group_, "preflight", values,
                   "run the same program with the same options, data and model on all ranks");
}

// --- gradients ---

Tensor Accelerator::ClipGradNorm(Optimizer& optimizer, double max_norm) {
  return sync_gradients() ? lathe::ClipGradNorm(optimizer, max_norm) : Tensor();
}

void Accelerator::UnscaleGradients(Optimizer& optimizer) {
  if (sync_gradients()) optimizer.UnscaleGrads();
}

bool Accelerator::optimizer_step_was_skipped() const {
  return !sync_gradients() || (scaler_ != nullptr && scaler_->step_was_skipped());
}

void Accelerator::ClipGradValue(Optimizer& optimizer, double max_value) {
  if (sync_gradients()) lathe::ClipGradValue(optimizer, max_value);
}

}  // namespace lathe
