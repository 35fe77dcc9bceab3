#include "lathe/distributed/accelerator.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "lathe/core/autograd.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/gemm_options.h"
#include "lathe/core/philox.h"
#include "lathe/core/version.h"
#include "lathe/distributed/accelerator_state.h"
#include "lathe/distributed/job.h"
#include "lathe/distributed/job_device.h"

namespace lathe {
namespace {

int64_t StepsFromEnvironment() {
  const char* name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  const char* set = std::getenv(name);
  if (set == nullptr || *set == 0) return 1;
  int64_t steps = 0;
  const char* end = set + std::strlen(set);
  const auto [stop, code] = std::from_chars(set, end, steps);
  if (code != std::errc{} || stop != end || steps < 1) {
    throw InvalidArgument(
        std::string(name) + " must be a whole number above 0 but is \"" + set + "\"",
        "correct the environment variable or unset it");
  }
  return steps;
}

// As Accelerate reads its variables.
bool IsTrue(std::string_view text) {
  return text == "1" || text == "true" || text == "True" || text == "yes" || text == "on";
}

// Of every bit: any single one that flips changes it. 48 bits.
uint64_t Checksum(const Tensor& tensor) {
  const Tensor on_host = tensor.To(Device{});
  const std::span<const float> values = on_host.values<float>();
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i)
    sum += std::bit_cast<uint32_t>(values[i]) * (2 * uint64_t{i} + 1);
  return sum & ((uint64_t{1} << 48) - 1);
}

std::string ShapeText(const Tensor& tensor) {
  std::ostringstream out;
  out << tensor.shape();
  return out.str();
}

template <typename T>
std::string Digest(const std::vector<T>& values) {
  return std::to_string(
      HashName({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
}

constexpr char kSameHint[] = "run the same program with the same options on all ranks";

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options)
    : options_(std::move(options)), state_(std::make_unique<State>()) {
  if (options_.gradient_accumulation_steps == 0) {
    options_.gradient_accumulation_steps = StepsFromEnvironment();
  }
  set_gradient_accumulation_steps(options_.gradient_accumulation_steps);
  std::string& precision = options_.mixed_precision;
  if (precision.empty()) {
    const char* set = std::getenv("ACCELERATE_MIXED_PRECISION");
    precision = set == nullptr || *set == 0 ? "no" : set;
  }
  Check(precision == "no" || precision == "bf16" || precision == "fp16", "accelerator",
        "mixed_precision must be \"no\", \"bf16\" or \"fp16\" but is \"", precision, "\"");
  const Job& job = TheJob(options_.environment, options_.timeout);
  if (options_.environment) {
    Check(options_.environment->rank == job.environment.rank &&
              options_.environment->world_size == job.environment.world_size,
          "accelerator", "this process is rank ", job.environment.rank, " of ",
          job.environment.world_size, " already and can't become rank ", options_.environment->rank,
          " of ", options_.environment->world_size);
  }
  std::string wish = options_.device;
  if (wish.empty()) {
    const char* cpu = std::getenv("ACCELERATE_USE_CPU");
    wish = cpu != nullptr && IsTrue(cpu) ? "cpu" : "auto";
  }
  JobDevice chosen = ChooseJobDevice(job, wish, options_.timeout);
  device_ = chosen.device;
  state_->device_group = std::move(chosen.group);
  if (job.environment.rank == 0 && !chosen.note.empty()) {
    std::cerr << "note: " << chosen.note << std::endl;
  }
  if (options_.deterministic) UseDeterministicGemms(true);
  if (precision == "fp16") {
    if (device_ == Device{}) {
      throw InvalidArgument("[accelerator] mixed_precision fp16 needs a GPU, and this is the CPU",
                            "use mixed_precision bf16, which the CPU has too");
    }
    state_->scaler = std::make_shared<GradScaler>(options_.grad_scaler);
  }
  if (device_ != Device{} && options_.step_graphs) {
    state_->graphs = std::make_unique<StepGraphs>(device_, state_->scaler);
  }
  state_->environment = job.environment;
  state_->local_main = job.local_main;
  group_ = job.group;
  CheckSame({{"Lathe version", kVersion},
             {"program with build id", BuildId()},
             {"device", device_ == Device{} ? "cpu" : "cuda"},
             {"mixed_precision", precision},
             {"gradient_accumulation_steps", std::to_string(gradient_accumulation_steps())},
             {"split_batches", options_.split_batches ? "true" : "false"},
             {"shard_optimizer", options_.shard_optimizer ? "true" : "false"}});
}

Accelerator::~Accelerator() {
  if (state_ == nullptr || std::uncaught_exceptions() <= state_->exceptions) return;
  group_->Abandon();
  if (state_->device_group != nullptr) state_->device_group->Abandon();
}
Accelerator::Accelerator(Accelerator&&) noexcept = default;

const ProcessEnvironment& Accelerator::environment() const { return state_->environment; }

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  Check(steps >= 1, "accelerator", "gradient_accumulation_steps must be at least 1 but is ", steps);
  options_.gradient_accumulation_steps = steps;
}

// --- Prepare ---

void Accelerator::PrepareModel(Module& model) {
  model.To(device_);
  model.SetComputeDType(mixed_precision() == "bf16"   ? DType::kBF16
                        : mixed_precision() == "fp16" ? DType::kF16
                                                      : DType::kF32);
  const std::vector<Parameter> parameters = model.Parameters();
  NamedValues layout;
  for (const Parameter& p : parameters) {
    Check(p.tensor.allocated(), "prepare", "parameter ", p.name,
          " has no values; Initialize the model or load its weights first");
    layout.emplace_back("parameter " + p.name, ShapeText(p.tensor));
    const bool known =
        std::any_of(state_->parameters.begin(), state_->parameters.end(),
                    [&](const Parameter& other) { return other.tensor.impl() == p.tensor.impl(); });
    if (!known) state_->parameters.push_back(p);
  }
  state_->reducer = nullptr;
  if (!use_distributed()) return;
  CheckSame(layout);
  // All have usually read the same file. NaN and Inf have bits like any number.
  uint64_t sum = 0;
  for (const Parameter& p : parameters) sum = sum * 31 + Checksum(p.tensor);
  const std::vector<std::string> sums = GatherStrings(*group_, std::to_string(sum));
  if (std::all_of(sums.begin(), sums.end(), [&](const auto& s) { return s == sums[0]; })) return;
  for (const Parameter& p : parameters) Broadcast(*group_, p.tensor);
}

void Accelerator::PrepareLoader(DataLoader& loader) {
  loader.Shard(process_index(), num_processes(), options_.split_batches, state_->passes);
  if (!use_distributed()) return;
  const TokenizedDataset& data = loader.dataset();
  const DataLoaderOptions& o = loader.options();
  CheckSame({{"dataset of size", std::to_string(data.size())},
             {"digest of token ids", Digest(data.input_ids)},
             {"digest of lengths", Digest(data.offsets)},
             {"digest of labels", Digest(data.classes) + Digest(data.scores)},
             {"batch_size", std::to_string(o.batch_size)},
             {"shuffle", std::to_string(o.shuffle)},
             {"group_by_length", std::to_string(o.group_by_length)},
             {"drop_last", std::to_string(o.drop_last)},
             {"data seed", std::to_string(o.seed)},
             {"epoch", std::to_string(loader.epoch())}});
}

void Accelerator::PrepareOptimizer(Optimizer& optimizer) {
  optimizer.StepOnlyIf(state_->sync);
  if (state_->scaler != nullptr) optimizer.UseGradScaler(state_->scaler);
  optimizer.UseGraphs(options_.step_graphs);
  auto& arenas = state_->arenas;
  const auto& arena = optimizer.shared_arena();
  // Optimizers of the same parameters share their buffers.
  const auto known = std::find_if(arenas.begin(), arenas.end(), [&](const auto& other) {
    return other->values().impl()->storage == arena->values().impl()->storage;
  });
  const size_t index = static_cast<size_t>(known - arenas.begin());
  if (known == arenas.end()) arenas.push_back(arena);
  state_->shares.resize(arenas.size());
  auto& shares = state_->shares[index];
  const bool shard = options_.shard_optimizer && use_distributed() && device_ == Device{};
  if (shard && shares == nullptr) {
    shares = std::make_shared<PresentShares>();
  }
  optimizer.ShareUpdates(shares);
  state_->reducer = nullptr;
  NamedValues rates = {{"number of parameter groups", std::to_string(optimizer.num_groups())}};
  for (int group = 0; group < optimizer.num_groups(); ++group) {
    std::ostringstream rate;
    rate.precision(17);
    rate << optimizer.initial_lr(group) << ", now " << optimizer.lr(group);
    rates.emplace_back("rate of group " + std::to_string(group), rate.str());
  }
  CheckSame(rates);
}

std::shared_ptr<const UpdateShares> MakeUpdateShares(std::shared_ptr<ProcessGroup> group,
                                                     std::vector<ElementRange> parts) {
  auto shares = std::make_shared<UpdateShares>();
  shares->rank = group->rank();
  shares->size = group->size();
  for (const ElementRange& part : parts) {
    const ElementRange own = Stripe(part, group->rank(), group->size());
    shares->own.push_back(own);
    for (const ElementRange& other : Without(part, {own})) shares->others.push_back(other);
  }
  shares->gather = [group, parts](std::span<float> data) { group->AllGatherStripes(data, parts); };
  shares->sum = [group](double mine) {
    group->AllReduce(std::span(&mine, 1));
    return mine;
  };
  shares->parts = std::move(parts);
  return shares;
}

// --- Backward ---

Accelerator::Accumulation::Accumulation(Accelerator& accelerator) : accelerator_(accelerator) {
  State& s = *accelerator.state_;
  Check(!s.accumulating, "accumulate", "one batch is being accumulated already");
  const auto share = s.PresentShare(accelerator.num_processes());
  const int64_t steps = accelerator.gradient_accumulation_steps();
  if (s.window_weight == 0) {
    const int64_t batches = std::min(steps - s.micro_step % steps, share.batches_left + 1);
    s.window_weight = std::max(share.total, 1.0) * static_cast<double>(batches);
  }
  ++s.micro_step;
  *s.sync = share.batches_left == 0 || s.micro_step % steps == 0;
  if (*s.sync) s.micro_step = 0;
  s.accumulating = true;
  s.counted = false;
}
Accelerator::Accumulation::~Accumulation() {
  accelerator_.state_->accumulating = false;
  accelerator_.state_->CloseWindow();
}

Accelerator::LocalGradients::LocalGradients(Accelerator& accelerator) : accelerator_(accelerator) {
  accelerator.state_->local = true;
}
Accelerator::LocalGradients::~LocalGradients() { accelerator_.state_->local = false; }

bool Accelerator::sync_gradients() const { return *state_->sync; }
double Accelerator::last_loss() const { return state_->losses.Last(); }
std::vector<double> Accelerator::TakeLosses() { return state_->losses.Take(); }
Tensor Accelerator::LastLosses() const { return state_->losses.LastOnDevice(); }
StepGraphStatistics Accelerator::graph_statistics() const {
  return state_->graphs == nullptr ? StepGraphStatistics() : state_->graphs->statistics();
}
bool Accelerator::stop_requested() const { return state_->stop_requested; }

Accelerator::Pass Accelerator::PassOf(const Tensor& loss) {
  return [this, loss](double seed) {
    const Tensor start = Tensor::Full(loss.shape(), seed, loss.dtype(), loss.device());
    if (state_->scaler != nullptr) {
      state_->scaler->BeginPass();
      state_->scaler->ScaleSeed(start);
    }
    lathe::Backward(loss, start);
    return loss;
  };
}

void Accelerator::Backward(const Tensor& loss) { BackwardOfBatch(PassOf(loss)); }

Tensor Accelerator::Backward(const Module& model, const Batch& batch,
                             const std::function<Tensor(const Batch&)>& forward) {
  State& s = *state_;
  // A share without weight has no backward pass.
  if (s.graphs == nullptr || use_distributed() || s.PresentShare(num_processes()).weight == 0) {
    const Tensor loss = forward(batch);
    Backward(loss);
    return loss.Detach();
  }
  Tensor loss;
  BackwardOfBatch([&](double seed) {
    if (s.scaler != nullptr) s.scaler->BeginPass();
    return loss = s.graphs->Run(model, batch, static_cast<float>(seed), forward);
  });
  return loss;
}

void Accelerator::BackwardOfBatch(const Pass& pass) {
  State& s = *state_;
  const auto share = s.PresentShare(num_processes());
  if (!s.accumulating) return BackwardOfShare(pass, share.weight, share.total);
  if (!std::exchange(s.counted, true)) s.weight += share.weight;
  Exchange(pass, share.weight / s.window_weight, share.weight);
}

void Accelerator::Backward(const Tensor& loss, double weight) {
  Check(!state_->accumulating, "backward", "under Accumulate the loader gives the weights");
  Check(weight >= 0 && std::isfinite(weight), "backward", "the weight is ", weight);
  double total = weight;
  group_->AllReduce(std::span(&total, 1));
  BackwardOfShare(PassOf(loss), weight, total);
}

// Of a batch of its own.
void Accelerator::BackwardOfShare(const Pass& pass, double weight, double total) {
  *state_->sync = true;
  state_->weight += weight;
  const double part = total > 0 ? weight / total : 0;
  Exchange(pass, part / static_cast<double>(gradient_accumulation_steps()), weight);
}

// One backward pass, and the exchange of gradients if it is due. A share without weight counts
// nowhere, and its loss may be NaN.
void Accelerator::Exchange(const Pass& pass, double seed, double loss_weight) {
  State& s = *state_;
  const bool exchange = *s.sync && !s.local;
  if (use_distributed()) {
    s.UpdateReducer(group_, options_.reducer);
    s.reducer->BeforeBackward(exchange);
  }
  if (loss_weight <= 0) {
    if (s.scaler != nullptr) {  // it is a pass on the other processes
      s.scaler->BeginPass();
      s.scaler->ScaleSeed(Tensor::Zeros({}, DType::kF32, device_));
    }
  } else {
    try {
      s.losses.Add(pass(seed), loss_weight);
    } catch (...) {
      if (s.reducer != nullptr) s.reducer->Abandon();
      throw;
    }
  }
  if (!exchange) return;

  ++s.step;
  double weight = s.weight;
  s.stop_requested = std::exchange(stop_, false);
  if (!use_distributed()) {
    s.losses.SetResult(weight);
  } else {
    StepRecord mine = {.loss_sum = s.losses.Sum(),
                       .weight = s.weight,
                       .stop = s.stop_requested,
                       .step = s.step % (1 << 24)};
    const bool checks =
        options_.check_parameters_every > 0 && s.step % options_.check_parameters_every == 0;
    if (checks) {
      for (const auto& arena : s.arenas) mine.checksum ^= Checksum(arena->values());
    }
    const std::vector<StepRecord> records = s.reducer->Finish(mine);
    CheckRecords(records);
    double loss_sum = 0;
    weight = 0;
    for (const StepRecord& record : records) {
      loss_sum += record.loss_sum;
      weight += record.weight;
      s.stop_requested = s.stop_requested || record.stop;
    }
    s.losses.SetLoss(loss_sum / weight);
  }
  // What the window turned out to weigh.
  if (s.window_weight != 0 && weight > 0 && weight != s.window_weight) {
    if (!use_distributed()) s.CoverParameters();
    const float scale = static_cast<float>(s.window_weight / weight);
    for (const auto& arena : s.arenas) {
      for (const auto& entry : arena->entries()) entry.parameter.tensor.impl()->grad_scale *= scale;
    }
    s.window_weight = weight;
  }
  s.exchanged = true;
  if (!s.accumulating) s.CloseWindow();
}

void Accelerator::CheckRecords(const std::vector<StepRecord>& records) {
  for (size_t rank = 1; rank < records.size(); ++rank) {
    if (records[rank].step != records[0].step) {
      throw Error(absl::StatusCode::kFailedPrecondition,
                  "[backward] rank " + std::to_string(rank) + " is at step " +
                      std::to_string(records[rank].step) + " but rank 0 at " +
                      std::to_string(records[0].step),
                  "make the same calls in the same order on all ranks");
    }
  }
  const bool same = std::all_of(records.begin(), records.end(), [&](const StepRecord& record) {
    return record.checksum == records[0].checksum;
  });
  if (!same) CheckParametersAgree();
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
  lathe::CheckSame(*group_,
                   ("step " + std::to_string(s.step) + ": processes have drifted apart").c_str(),
                   sums, "is a machine's memory damaged, or do the ranks run different code?");
}

void Accelerator::CheckSame(const NamedValues& values) {
  if (use_distributed()) lathe::CheckSame(*group_, "preflight", values, kSameHint);
}

// --- gradients ---

Tensor Accelerator::ClipGradNorm(Optimizer& optimizer, double max_norm) {
  return sync_gradients() ? lathe::ClipGradNorm(optimizer, max_norm) : Tensor();
}

void Accelerator::UnscaleGradients(Optimizer& optimizer) {
  if (sync_gradients()) optimizer.UnscaleGrads();
}

const GradScaler* Accelerator::scaler() const { return state_->scaler.get(); }

bool Accelerator::optimizer_step_was_skipped() const {
  return !sync_gradients() || (state_->scaler != nullptr && state_->scaler->step_was_skipped());
}

void Accelerator::ClipGradValue(Optimizer& optimizer, double max_value) {
  if (sync_gradients()) lathe::ClipGradValue(optimizer, max_value);
}

}  // namespace lathe
