// The part of the trainer that knows which model is the best, and loads it at the end.
#include <bit>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/manifest.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/train/checkpoint/checkpoint_files.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

}  // namespace

bool Trainer::SavesTheBest() const {
  return keeps_checkpoints() &&
         (arguments_.save_strategy == "best" || arguments_.load_best_model_at_end);
}

bool Trainer::IsBetter(double metric, const std::optional<double>& than) const {
  return !than || (greater_is_better_ ? metric > *than : metric < *than);
}

void Trainer::UpdateBest(double metric) {
  AgreeOnBest();
  const bool better = IsBetter(metric, state_.best_metric);
  if (better && SavesTheBest()) {
    // The checkpoint before may be that of the present best model, and may fail.
    const auto begin = Clock::now();
    accelerator_.SetPhase("saving");
    FinishSaving(/*wait=*/true);
    accelerator_.SetPhase("training");
    CountBesideSteps(begin);
    NoteBestBefore();
    control_.should_save = true;
  } else if (better && arguments_.load_best_model_at_end) {
    const AllocationTag allocation_tag = AllocationTag::State("the best parameters so far");
    best_values_ = optimizer_.arena().values().Clone();
    state_.best_model_checkpoint.clear();
  } else if (better && !arguments_.metric_for_best_model.empty() && begun_ &&
             begun_->step == state_.global_step) {
    // This step's checkpoint was begun before the evaluation, so its save could not tell.
    state_.best_model_checkpoint = begun_best_ = begun_->path;
    best_values_ = {};
  } else if (better && !arguments_.metric_for_best_model.empty()) {
    best_values_ = {};  // those of a training before the resume are no longer the best
  }
  if (better && !arguments_.metric_for_best_model.empty()) {
    state_.best_metric = metric;
    state_.best_global_step = state_.global_step;
    best_by_ = nullptr;  // this training's own
  }
}

void Trainer::NoteBestBefore() {
  best_before_ = {.metric = state_.best_metric,
                  .step = state_.best_global_step,
                  .checkpoint = state_.best_model_checkpoint,
                  .is_in_memory = best_values_.defined()};
  if (best_before_.is_in_memory) values_before_ = std::exchange(best_values_, {});
}

void Trainer::ForgetUnsavedBest(const SavedCheckpoint& failed) {
  save_has_failed_ = true;
  begun_.reset();
  // An older checkpoint of the same step has the same model.
  if (state_.best_model_checkpoint != failed.path || last_checkpoint_ == failed.path) return;
  state_.best_model_checkpoint = best_before_.checkpoint;
  if (!SavesTheBest()) return;  // its metric still is the best one, wherever its model is
  if (state_.best_metric && (!lost_best_ || IsBetter(*state_.best_metric, lost_best_->metric)))
    lost_best_ = BestModel{.metric = state_.best_metric, .step = state_.best_global_step};
  state_.best_metric = best_before_.metric;
  state_.best_global_step = best_before_.step;
  if (best_before_.is_in_memory) best_values_ = values_before_;
}

bool Trainer::BestIsUnsaved() const {
  return !begun_best_.empty() && begun_best_ == state_.best_model_checkpoint &&
         state_.best_global_step != state_.global_step && sees_main_folder_ &&
         !IsOwnCheckpoint(begun_best_);
}

void Trainer::AgreeOnBest() {
  if (!keeps_checkpoints() || !accelerator_.use_distributed()) return;
  json news;  // null: no save has failed since the last time
  if (std::exchange(save_has_failed_, false)) {
    const auto& metric = state_.best_metric;
    const auto& step = state_.best_global_step;
    news = {{"metric_bits", metric ? json(std::bit_cast<int64_t>(*metric)) : json()},
            {"step", step ? json(*step) : json()},
            {"checkpoint", state_.best_model_checkpoint},
            {"is_in_memory", best_values_.defined()},
            {"lost_metric_bits",
             lost_best_ ? json(std::bit_cast<int64_t>(*lost_best_->metric)) : json()},
            {"lost_step", lost_best_ ? json(*lost_best_->step) : json()},
            {"has_begun_one", begun_.has_value()}};
  }
  const std::string told = accelerator_.GatherObject(DumpJson(news))[0];
  if (accelerator_.is_main_process()) return;
  news = ParseJson(told);
  if (news.is_null()) return;
  state_.best_metric.reset();
  state_.best_global_step.reset();
  if (const json& bits = news.at("metric_bits"); !bits.is_null())
    state_.best_metric = std::bit_cast<double>(bits.get<int64_t>());
  if (const json& number = news.at("step"); !number.is_null())
    state_.best_global_step = number.get<int64_t>();
  state_.best_model_checkpoint = news.at("checkpoint").get<std::string>();
  if (!news.at("is_in_memory").get<bool>()) {
    best_values_ = {};
  } else if (!best_values_.defined()) {
    best_values_ = values_before_;
  }
  if (!news.at("has_begun_one").get<bool>()) begun_.reset();
  if (!news.at("lost_step").is_null()) {
    lost_best_ =
        BestModel{.metric = std::bit_cast<double>(news.at("lost_metric_bits").get<int64_t>()),
                  .step = news.at("lost_step").get<int64_t>()};
  }
}

bool Trainer::BestIsLost() const {
  return lost_best_ && IsBetter(*lost_best_->metric, state_.best_metric);
}

void Trainer::WarnOfLostBest() {
  if (!BestIsLost() || !accelerator_.is_main_process()) return;
  const std::string kept = state_.best_global_step
                               ? "step " + std::to_string(*state_.best_global_step)
                               : "the last step";
  Call(&Callback::OnWarning, "warning: the best model, that of step " +
                                 std::to_string(*lost_best_->step) +
                                 ", could not be saved; the model is that of " + kept);
}

void Trainer::WarnOfMissingBest() {
  if (!state_.best_global_step || BestIsLost() || !accelerator_.is_main_process()) return;
  Call(&Callback::OnWarning, "warning: no checkpoint holds the best model, that of step " +
                                 std::to_string(*state_.best_global_step) +
                                 "; the model is that of the last step");
}

void Trainer::LoadBestModel() {
  AgreeOnBest();
  WarnOfLostBest();
  Tensor values = optimizer_.arena().values();
  if (best_values_.defined()) {
    values.CopyFrom(best_values_);
    model_is_best_ = state_.best_global_step != state_.global_step;
    return;
  }
  // The main process knows whether the best checkpoint has reached the disk.
  const std::string best = accelerator_.GatherObject(state_.best_model_checkpoint)[0];
  state_.best_model_is_gone = best.empty();
  if (best.empty()) return WarnOfMissingBest();
  // The parameters stay as they are until all ranks have read the best ones as a whole.
  Tensor loaded;
  const std::string own_problem = ReadBest(best, loaded);
  accelerator_.WaitWithoutTimeout();  // a disk may be slow
  std::string problem;
  for (const std::string& each : accelerator_.GatherObject(own_problem)) {
    if (problem.empty()) problem = each;
  }
  state_.best_model_is_gone = !problem.empty();
  if (problem.empty()) {
    values.CopyFrom(loaded);
    model_is_best_ = state_.best_global_step != state_.global_step;
  } else if (accelerator_.is_main_process()) {
    Call(&Callback::OnWarning, "warning: " + problem + "; the model is that of the last step");
  }
}

std::string Trainer::ReadBest(const std::string& dir, Tensor& values) try {
  const std::string file = dir + "/" + kModelFile;
  if (accelerator_.is_main_process()) {
    std::error_code code;
    if (!fs::exists(file, code)) return dir + " with the best model is gone";
    CheckpointManifest manifest = ReadManifest(dir);
    std::erase_if(manifest.files, [&](const auto& named) { return named.first != kModelFile; });
    if (manifest.files.empty()) return dir + "/" + kManifestFile + ": names no " + kModelFile;
    VerifyFiles(dir, manifest);
  }
  values = Tensor::Zeros(optimizer_.arena().values().shape());
  ReadTrained(file, values);
  return "";
} catch (const Error& e) {
  return e.message();
}

void Trainer::ReadTrained(const std::string& file, const Tensor& values) const {
  const SafetensorsReader reader(file);
  for (const auto& [parameter, offset] : optimizer_.arena().entries()) {
    Tensor part =
        values.Slice(offset, offset + parameter.tensor.numel()).Reshape(parameter.tensor.shape());
    reader.Read(parameter.name, part);
  }
}

}  // namespace lathe
