#include "lathe/train/callbacks/progress_callback.h"

#include <iostream>
#include <string>
#include <vector>

namespace lathe {
namespace {

// Returns the parts as one line, or as several if the terminal is too narrow.
std::string LineOf(const std::vector<std::string>& parts) {
  return FoldedLine(parts, "  ", 4, ColumnsOfOutput());
}

}  // namespace

void ProgressCallback::OnTrainBegin(const TrainingArguments& arguments, const TrainerState& state,
                                    TrainerControl&) {
  if (!state.is_world_process_zero) return;
  train_.emplace(Progress::Options{.title = "train",
                                   .begin = state.global_step,
                                   .total = state.max_steps,
                                   .enabled = !arguments.disable_tqdm,
                                   .loss_curve = arguments.loss_curve});
}

void ProgressCallback::OnStepEnd(const TrainingArguments&, const TrainerState& state,
                                 TrainerControl&) {
  encoding_.reset();
  if (train_) train_->Update(1, state.loss);
}

void ProgressCallback::OnLog(const TrainingArguments&, const TrainerState& state, TrainerControl&,
                             const nlohmann::json& logs) {
  if (!train_ || !logs.contains("loss")) return;
  std::vector<std::string> parts = {
      "step " + std::to_string(state.global_step) + "/" + std::to_string(state.max_steps),
      FormatNumber("epoch %.2f", state.epoch),
      FormatNumber("loss %.4f", logs.at("loss").get<double>()),
      FormatNumber("grad_norm %.3f", state.grad_norm),
      FormatNumber("learning_rate %.3g", logs.at("learning_rate").get<double>())};
  if (const int64_t skipped = logs.value("skipped_steps", int64_t{0}); skipped > 0) {
    parts.push_back(FormatNumber("loss_scale %g", logs.at("loss_scale").get<double>()));
    parts.push_back("skipped_steps " + std::to_string(skipped));
  }
  train_->Print(LineOf(parts));
}

void ProgressCallback::OnEncodeBegin(const TrainingArguments& arguments, const TrainerState&,
                                     TrainerControl&, int64_t num_batches) {
  if (!train_) return;
  train_->Clear();
  encoding_.emplace(Progress::Options{.title = "encode",
                                      .total = num_batches,
                                      .unit = "batch",
                                      .enabled = !arguments.disable_tqdm});
}

void ProgressCallback::OnEncodeStep(const TrainingArguments&, const TrainerState&,
                                    TrainerControl&) {
  if (encoding_) encoding_->Update(1);
}

void ProgressCallback::OnEvaluateBegin(const TrainingArguments& arguments, const TrainerState&,
                                       TrainerControl&, int64_t num_batches) {
  if (!train_) return;
  train_->Clear();
  evaluation_.emplace(Progress::Options{
      .title = "eval", .total = num_batches, .unit = "batch", .enabled = !arguments.disable_tqdm});
}

void ProgressCallback::OnPredictionStep(const TrainingArguments&, const TrainerState&,
                                        TrainerControl&) {
  if (evaluation_) evaluation_->Update(1);
}

void ProgressCallback::OnEvaluate(const TrainingArguments&, const TrainerState& state,
                                  TrainerControl&, const nlohmann::json& metrics) {
  if (!train_) return;
  evaluation_.reset();
  std::vector<std::string> parts = {"eval at step " + std::to_string(state.global_step)};
  for (const auto& [name, value] : metrics.items()) {
    if (name.ends_with("_second") || name.ends_with("runtime") || name.ends_with("samples"))
      continue;
    parts.push_back(name + FormatNumber(" %.4f", value.get<double>()));
  }
  train_->Print(LineOf(parts));
}

void ProgressCallback::OnCheckpoint(const TrainingArguments&, const TrainerState&, TrainerControl&,
                                    const std::string& checkpoint) {
  if (train_) train_->Print("saved " + checkpoint);
}

void ProgressCallback::OnWarning(const TrainingArguments&, const TrainerState& state,
                                 TrainerControl&, const std::string& text) {
  if (train_) {
    train_->Print(text);
  } else if (state.is_world_process_zero) {
    std::cout << text << std::endl;  // such as that of a callback's OnTrainEnd
  }
}

void ProgressCallback::OnTrainEnd(const TrainingArguments&, const TrainerState&, TrainerControl&) {
  evaluation_.reset();  // a signal may have ended an evaluation
  encoding_.reset();
  train_.reset();
}

}  // namespace lathe
