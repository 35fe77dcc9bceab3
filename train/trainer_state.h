// trainer_state.json, in the form that Transformers' TrainerState reads.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace lathe {

struct TrainerState {
  double epoch = 0;
  int64_t global_step = 0, max_steps = 0;
  int64_t num_train_epochs = 0;
  int64_t logging_steps = 0, eval_steps = 0;
  int64_t train_batch_size = 0;
  int64_t num_input_tokens_seen = 0;
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  nlohmann::json log_history = nlohmann::json::array();

  // Adds the entry to log_history, with epoch and step.
  void Log(nlohmann::json entry);
  // Has only the keys that TrainerState knows, because it refuses others.
  nlohmann::json ToJson() const;
};

}  // namespace lathe
