#include "lathe/train/trainer_state.h"

#include <utility>

namespace lathe {

void TrainerState::Log(nlohmann::json entry) {
  entry["epoch"] = epoch;
  entry["step"] = global_step;
  log_history.push_back(std::move(entry));
}

nlohmann::json TrainerState::ToJson() const {
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  return {{"best_global_step", or_null(best_global_step)},
          {"best_metric", or_null(best_metric)},
          {"best_model_checkpoint", nullptr},
          {"epoch", epoch},
          {"eval_steps", eval_steps},
          {"global_step", global_step},
          {"is_hyper_param_search", false},
          {"is_local_process_zero", true},
          {"is_world_process_zero", true},
          {"log_history", log_history},
          {"logging_steps", logging_steps},
          {"max_steps", max_steps},
          {"num_input_tokens_seen", num_input_tokens_seen},
          {"num_train_epochs", num_train_epochs},
          {"save_steps", max_steps},
          {"stateful_callbacks", nlohmann::json::object()},
          {"total_flos", 0.0},
          {"train_batch_size", train_batch_size},
          {"trial_name", nullptr},
          {"trial_params", nullptr}};
}

}  // namespace lathe
