// The part of the trainer that knows which model is the best, and loads it at the end.
#include <filesystem>
#include <string>
#include <system_error>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

}  // namespace

void Trainer::UpdateBest(double metric) {
  const bool better = !state_.best_metric || (greater_is_better_ ? metric > *state_.best_metric
                                                                 : metric < *state_.best_metric);
  if (better && !arguments_.metric_for_best_model.empty()) {
    state_.best_metric = metric;
    state_.best_global_step = state_.global_step;
  }
  if (better && keeps_checkpoints() &&
      (arguments_.save_strategy == "best" || arguments_.load_best_model_at_end)) {
    control_.should_save = true;
    best_values_ = {};
  } else if (better && arguments_.load_best_model_at_end) {
    const AllocationTag allocation_tag = AllocationTag::State("the best parameters so far");
    best_values_ = optimizer_.arena().values().Clone();
  } else if (better && !arguments_.metric_for_best_model.empty() && begun_ &&
             begun_->step == state_.global_step) {
    // This step's checkpoint was begun before the evaluation, so its save could not tell.
    state_.best_model_checkpoint = begun_->path;
  }
}

void Trainer::LoadBestModel() {
  if (best_values_.defined()) {
    Tensor values = optimizer_.arena().values();
    values.CopyFrom(best_values_);
    return;
  }
  // The main process knows whether the best checkpoint has reached the disk.
  std::string best = state_.best_model_checkpoint;
  if (std::error_code code; accelerator_.is_main_process() && !best.empty() &&
                            !fs::exists(best + "/model.safetensors", code)) {
    Call(&Callback::OnWarning, "warning: " + best +
                                   " with the best model is gone; the model is "
                                   "that of the last step");
    best.clear();
  }
  best = accelerator_.GatherObject(best)[0];
  if (best.empty()) return;
  ReadParameters(best);
}

}  // namespace lathe
