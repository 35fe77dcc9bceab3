// trainer_state.json, as Transformers' TrainerState reads it.
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

  // Adds epoch and step to the entry.
  void Log(nlohmann::json entry);
  // TrainerState refuses keys that it doesn't know: there is none here.
  nlohmann::json ToJson() const;
};

}  // namespace lathe
