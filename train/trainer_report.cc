// The part of the trainer that reads numbers back, writes them down and saves.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/progress.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

// Returns the peak resident memory of this program. getrusage comes second, because it also counts
// what the process held before it became this program.
int64_t PeakRssBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kPeak = "VmHWM:";
    if (line.starts_with(kPeak))
      return std::strtoll(line.c_str() + kPeak.size(), nullptr, 10) * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

bool AllFinite(const Tensor& tensor) {
  const Tensor on_host = tensor.To(Device{});
  const auto values = on_host.values<float>();
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Inf" : "-Inf";
  return FormatNumber("%g", value);
}

}  // namespace

bool Trainer::ReadStepResults() {
  const std::vector<double> losses = accelerator_.TakeLosses();
  const std::vector<UnreadStep> steps = std::exchange(unread_, {});
  const GradScaler* const scaler = accelerator_.scaler();
  bool overflown = false;
  // The number of the first unread step. state_.global_step doesn't tell it, because steps that are
  // read after their update are counted there already.
  const int64_t first = steps_read_ + 1;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t step = first + static_cast<int64_t>(i);
    const double loss = losses.at(i);
    loss_since_log_ += loss;
    loss_total_ += loss;
    ++steps_read_;
    const auto bad = [&](const std::string& what, bool model_is_bad) {
      window_ = steps[i].window;
      state_.epoch -= static_cast<double>(state_.global_step - (step - 1)) /
                      static_cast<double>(steps_per_epoch_);
      state_.global_step = step - 1;  // the guard has held back all later updates
      SaveLastGoodModelAndThrow({.step = step, .what = what, .model_is_bad = model_is_bad});
    };
    if (!std::isfinite(loss)) bad("the loss is " + NumberText(loss), true);
    state_.grad_norm = steps[i].grad_norm.Item();
    overflown = !std::isfinite(state_.grad_norm);
    double scale = 0;
    if (overflown && scaler != nullptr) {
      scale = steps[i].scale.defined() ? steps[i].scale.Item() : scaler->scale();
    }
    if (overflown && scaler != nullptr && scale >= GradScaler::kSmallestScale) {
      WarnOfSmallScale(scale);
    } else if (overflown) {
      bad("the gradient norm is " + NumberText(state_.grad_norm), !ParametersAreFinite());
    }
    state_.loss = loss;
    state_.read_steps.push_back({.step = step, .loss = loss, .grad_norm = state_.grad_norm});
  }
  return !overflown;
}

void Trainer::WarnOfSmallScale(double scale) {
  if (scale > 1 || std::exchange(warned_of_scale_, true)) return;
  Call(&Callback::OnWarning,
       FormatNumber("warning: gradients overflow float16 even at a loss scale of %g; "
                    "mixed_precision bf16 has a larger range",
                    scale));
}

void Trainer::PassOnWarnings() {
  for (const std::string& text : std::exchange(control_.warnings, {})) {
    for (const auto& callback : callbacks_) callback->OnWarning(arguments_, state_, control_, text);
  }
}

void Trainer::Log(nlohmann::json entry) {
  state_.Log(std::move(entry));
  Call(&Callback::OnLog, state_.log_history.back());
}

void Trainer::LogStep() {
  if (state_.global_step == logged_step_) return;  // a callback has asked twice for this step
  ReadStepResults();
  const double steps = static_cast<double>(state_.global_step - logged_step_);
  nlohmann::json entry = {{"loss", loss_since_log_ / steps},
                          {"learning_rate", optimizer_.used_lr()}};
  // If the norm is not finite, the step was skipped.
  if (std::isfinite(state_.grad_norm)) entry["grad_norm"] = state_.grad_norm;
  if (const GradScaler* scaler = accelerator_.scaler(); scaler != nullptr) {
    entry["loss_scale"] = scaler->scale();
    entry["skipped_steps"] = scaler->num_skipped_steps();
  }
  loss_since_log_ = 0;
  logged_step_ = state_.global_step;
  Log(std::move(entry));
}

void Trainer::EvaluateNow() {
  if (inputs_.evaluation == nullptr) {
    throw InvalidArgument(
        "[trainer] a callback has asked for an evaluation, but there is no evaluation data",
        "set TrainerInputs::evaluation");
  }
  CheckMetricName();
  ReadStepResults();
  accelerator_.SetPhase("evaluating");
  const auto begin = Clock::now();
  const Evaluation evaluation = Evaluate(
      accelerator_, model_, inputs_.evaluation,
      {.per_device_batch_size = arguments_.per_device_eval_batch_size,
       .on_begin = [this](int64_t num_batches) { Call(&Callback::OnEvaluateBegin, num_batches); },
       .on_batch = [this] { Call(&Callback::OnPredictionStep); },
       .encodings = encodings()});
  model_.Train();
  accelerator_.SetPhase("training");
  if (!evaluation.complete) {
    CountBesideSteps(begin);
    interrupted_ = true;
    return;
  }
  if (encodings_ && !encodings_->note().empty() && !std::exchange(noted_encodings_, true))
    Call(&Callback::OnWarning, encodings_->note());
  CheckFinite(evaluation, "evaluation");
  const nlohmann::json metrics = EvalMetrics(evaluation, *inputs_.evaluation, arguments_.task_name);
  CountBesideSteps(begin);
  const double metric = metrics.at(metric_name_).get<double>();
  // This may meet a lost rank, and then the evaluation is done again after a resume.
  UpdateBest(metric);
  scheduler_->StepMetric(metric);
  Log(metrics);
  Call(&Callback::OnEvaluate, metrics);
}

void Trainer::SaveNow() {
  ReadStepResults();  // on a GPU this waits for steps, so it is no part of the save
  const auto begin = Clock::now();
  if (keeps_checkpoints()) {
    SaveCheckpoint(/*beside=*/true);
  } else {
    CheckLastUpdate();
    model_.Train();
    Save();
    accelerator_.WaitWithoutTimeout();  // a disk may be slow
    accelerator_.SetPhase("training");
  }
  CountBesideSteps(begin);
}

void Trainer::CountBesideSteps(Clock::time_point begin) {
  state_.seconds_beside_steps += std::chrono::duration<double>(Clock::now() - begin).count();
}

void Trainer::CheckFinite(const Evaluation& evaluation, const std::string& data) {
  const std::string problem = FirstNotFinite(evaluation, inputs_.train->num_labels, data);
  if (!problem.empty()) SaveLastGoodModelAndThrow({.step = state_.global_step, .what = problem});
}

void Trainer::CheckLastUpdate() {
  if (!ParametersAreFinite())
    SaveLastGoodModelAndThrow({.step = state_.global_step, .what = "a parameter is not finite"});
  if (!last_batch_) return;
  // Finite parameters may still be so large that nothing can be computed with them.
  model_.Eval();
  NoGradGuard no_grad;
  const SequenceClassifierOutput outputs = model_.Forward(*last_batch_);
  const auto logits = outputs.logits.ToVector<float>();
  // Each rank has looked at its own share only.
  if (!std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); })) {
    accelerator_.SetTrigger();
  }
  if (accelerator_.CheckTrigger()) {
    SaveLastGoodModelAndThrow(
        {.step = state_.global_step, .what = "the logits after this step are not finite"});
  }
  const double loss = outputs.loss.Item();
  if (!std::isfinite(loss)) accelerator_.SetTrigger();
  if (accelerator_.CheckTrigger()) {
    SaveLastGoodModelAndThrow(
        {.step = state_.global_step, .what = "the loss after this step is not finite"});
  }
}

bool Trainer::ParametersAreFinite() const { return AllFinite(optimizer_.arena().values()); }

// Names the first parameter, in the order of use, that is not finite. Otherwise names the first
// gradient that is not finite, in the order of the backward pass: later ones may only have
// inherited it. Returns "" if there is none.
std::string Trainer::FindNotFinite() {
  const std::vector<Parameter> parameters = model_.Parameters();
  for (const Parameter& parameter : parameters) {
    if (!AllFinite(parameter.tensor))
      return "parameter \"" + parameter.name + "\" holds a value that is not finite";
  }
  if (window_.empty()) return "";  // no backward pass to look into
  // Clipping by a bad norm has spoiled all gradients, so they are computed once more. They come out
  // the same, because dropout is a function of the step.
  optimizer_.ZeroGrad();
  for (const Batch& batch : window_) Backward(model_.Forward(batch).loss);
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    const Tensor grad = parameter->tensor.grad();
    if (grad.defined() && !AllFinite(grad)) {
      return "the first gradient that is not finite is that of parameter \"" + parameter->name +
             "\"";
    }
  }
  return "";
}

// With several ranks, returns what the lowest rank that found something says.
std::string Trainer::FindNotFiniteOnAnyRank() {
  const std::vector<std::string> all = accelerator_.GatherObject(FindNotFinite());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return all[rank] + (all.size() > 1 ? " on rank " + std::to_string(rank) : "");
  }
  return "";
}

void Trainer::LeaveReportToMain() {
  // The main process is saving. Wait for its end, because a launcher ends a job soon after its
  // first process ends.
  try {
    accelerator_.group().AwaitMessage("nothing but the main process's end", 0);
  } catch (const Error&) {
  }
  throw ReportedElsewhere{};
}

void Trainer::SaveLastGoodModelAndThrow(const BadNumber& bad) {
  int64_t step = bad.step;
  std::string cause = bad.only_on_main ? FindNotFinite() : FindNotFiniteOnAnyRank();
  if (cause.empty()) {
    cause = window_.empty() ? "all parameters are finite"
                            : "each parameter and each gradient by itself is finite";
  }
  const std::string message = "step " + std::to_string(step) + ": " + bad.what + "; " + cause;
  if (!accelerator_.is_main_process()) LeaveReportToMain();
  const bool untouched = state_.global_step == 0 && !ParametersAreFinite();
  std::string hint =
      untouched
          ? "the weights that training starts from are damaged; use another model"
          : "lower " + OptionName("learning_rate") + " or raise " + OptionName("warmup_steps");
  if (!untouched && accelerator_.scaler() != nullptr)
    hint += ", or use " + OptionName("mixed_precision") + " bf16";
  if (out_ == nullptr) throw InvalidArgument(message, hint);
  metrics_ = nullptr;  // they don't describe the model that is saved
  Tensor values = optimizer_.arena().values();
  values.impl()->storage->Unshare();  // a write here must not change the other ranks' values
  if (bad.model_is_bad && best_values_.defined()) {
    values.CopyFrom(best_values_);
    step = *state_.best_global_step + 1;
  } else if (bad.model_is_bad && HasGoodValues()) {
    Tensor good = values.To(Device{});
    good_values_->Restore(good.values<float>());
    values.CopyFrom(good);
    step = good_step_;
  } else if (bad.model_is_bad) {
    throw InvalidArgument(message, hint);
  }
  Save();
  throw InvalidArgument(message, hint + "; the last good model, from before step " +
                                     std::to_string(step) + ", is in " + out_->path());
}

void Trainer::Save() {
  if (out_ == nullptr) return;
  accelerator_.SetPhase("saving");
  out_->Replace([this](const std::string& dir) {
    model_.SavePretrained(dir);
    if (inputs_.tokenizer != nullptr) inputs_.tokenizer->SavePretrained(dir);
    CollectCallbackStates();
    Call(&Callback::OnSave, dir);
    if (!metrics_.is_null()) {
      WriteFileAtomically(dir + "/train_results.json", DumpJson(metrics_, 4) + "\n");
    }
  });
}

nlohmann::json Trainer::TrainMetrics(double seconds) const {
  const double steps = static_cast<double>(state_.global_step);
  nlohmann::json metrics = {
      {"epoch", state_.epoch},
      {"train_loss", steps > 0 ? loss_total_ / steps : 0.0},
      {"train_runtime", seconds},
      {"train_samples", loader_.num_samples()},
      {"train_samples_per_second", static_cast<double>(samples_seen_) / seconds},
      {"train_steps_per_second", (steps - static_cast<double>(steps_before_)) / seconds},
      {"train_tokens_per_second",
       static_cast<double>(state_.num_input_tokens_seen - tokens_before_) / seconds},
      {"time_to_first_step", time_to_first_step_},
      {"peak_rss_bytes", PeakRssBytes()}};
  if (const Device device = accelerator_.device(); !device.is_cpu()) {
    metrics["peak_device_memory_bytes"] = BackendOf(device).Memory(device.index).peak;
  }
  if (const GradScaler* scaler = accelerator_.scaler(); scaler != nullptr) {
    metrics["skipped_steps"] = scaler->num_skipped_steps();
  }
  if (const RankCosts costs = accelerator_.rank_costs(); costs.num_steps > 0) {
    metrics["time_in_collectives"] = costs.in_calls.all;
    metrics["time_in_collectives_hidden"] = costs.in_calls.hidden;
    metrics["time_in_collectives_exposed"] = costs.in_calls.exposed();
    metrics["slowest_rank"] = costs.slowest_rank;
    metrics["slowest_rank_extra_time"] = costs.slowest_rank_extra;
  }
  const bool was_over = steps_before_ > 0 && state_.global_step == steps_before_;
  return was_over && out_ != nullptr ? EarlierMetrics(metrics) : metrics;
}

nlohmann::json Trainer::EarlierMetrics(const nlohmann::json& metrics) const try {
  const auto earlier = ParseJson(ReadRegularFile(out_->path() + "/train_results.json"));
  for (const char* key : {"epoch", "train_loss", "train_samples"})
    if (earlier.at(key) != metrics.at(key)) return metrics;
  return earlier.at("train_runtime").is_number() ? earlier : metrics;
} catch (const std::exception&) {
  return metrics;  // there is no such file, or it has been changed
}

}  // namespace lathe
