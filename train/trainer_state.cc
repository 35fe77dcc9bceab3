#include "lathe/train/trainer_state.h"

#include <utility>

#include "lathe/core/base/error.h"

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
  return {
      {"best_global_step", or_null(best_global_step)},
      {"best_metric", or_null(best_metric)},
      {"best_model_checkpoint",
       best_model_checkpoint.empty() ? nlohmann::json() : nlohmann::json(best_model_checkpoint)},
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
      {"save_steps", save_steps > 0 ? save_steps : max_steps},
      {"stateful_callbacks", stateful_callbacks},
      {"total_flos", 0.0},
      {"train_batch_size", train_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr}};
}

void TrainerState::LoadJson(const nlohmann::json& json, const std::string& file) try {
  global_step = json.at("global_step").get<int64_t>();
  epoch = json.at("epoch").get<double>();
  num_input_tokens_seen = json.at("num_input_tokens_seen").get<int64_t>();
  log_history = json.at("log_history");
  if (const auto& best = json.at("best_metric"); !best.is_null()) best_metric = best.get<double>();
  if (const auto& best = json.at("best_global_step"); !best.is_null())
    best_global_step = best.get<int64_t>();
  if (const auto& best = json.at("best_model_checkpoint"); !best.is_null())
    best_model_checkpoint = best.get<std::string>();
} catch (const nlohmann::json::exception& e) {
  throw DataLoss(file + ": " + WithoutTag(e.what()));
}

}  // namespace lathe
