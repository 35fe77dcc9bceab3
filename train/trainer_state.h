// What a Trainer has done so far, with the names of Transformers' TrainerState.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/checkpoint/state_dict.h"

namespace lathe {

// What a step has given.
struct StepResult {
  int64_t step = 0;
  double loss = 0;       // the mean
  double grad_norm = 0;  // not finite if float16 gradients have overflowed
};

struct TrainerState {
  double epoch = 0;
  int64_t global_step = 0, max_steps = 0;
  int64_t num_train_epochs = 0;
  int64_t logging_steps = 0, eval_steps = 0;
  int64_t save_steps = 0;  // 0: there are no checkpoints every so many steps
  int64_t train_batch_size = 0;
  int64_t num_input_tokens_seen = 0;
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  std::string best_model_checkpoint;  // the folder; empty if there is none
  nlohmann::json log_history = nlohmann::json::array();
  // What objects besides this one need to go on, by their names. In a checkpoint "Lathe" has what
  // the Trainer needs. Transformers passes over names that it doesn't know.
  nlohmann::json stateful_callbacks = nlohmann::json::object();

  // These are not part of trainer_state.json.
  //
  // The mean loss and the gradient norm of the last step whose numbers have been read. On a GPU
  // this may be some steps ago, but after a log it is the present step. The norm is not finite if
  // float16 gradients have overflowed.
  std::optional<double> loss;
  double grad_norm = 0;
  // The steps whose numbers have been read since the last OnStepEnd, in order. OnStepEnd sees those
  // of its own step, too, if they are known. On a GPU many steps are read at once.
  std::vector<StepResult> read_steps = {};
  // The learning rate of the last step, if it is known without waiting for a GPU.
  std::optional<double> learning_rate = {};
  // How long evaluations and saves have kept this process from training so far, in seconds. The
  // times of a log, such as train_runtime, contain it, as Trainer's do.
  double seconds_beside_steps = 0;
  bool is_world_process_zero = true;  // this is the main process
  // load_best_model_at_end found no best model, so the model is that of the last step.
  bool best_model_is_gone = false;

  // Adds the entry to log_history, with epoch and step.
  void Log(nlohmann::json entry);
  // Returns trainer_state.json. It has only the keys that Transformers' TrainerState knows, because
  // that refuses others. It is the main process's, whichever process writes it.
  nlohmann::json ToJson() const;
  // Returns the contents of the file. JSON is UTF-8, but the name of a folder may be anything, so
  // U+FFFD takes the place of bytes that are not. In a checkpoint, kOwnState also tells where
  // numbers are infinite or NaN, and ReadTrainerState puts them back.
  std::string ToText() const;
  // Goes on from a trainer_state.json: takes what has been done so far from it, but not the plan
  // (max_steps, logging_steps and so on). Throws DataLoss, naming the file, for anything else.
  void LoadJson(const nlohmann::json& json, const std::string& file);
};

// The name in stateful_callbacks of what the Trainer itself needs.
inline constexpr char kOwnState[] = "Lathe";

// The name there of the commits of models from a Hub (TrainerInputs::hub_commits).
inline constexpr char kHubCommits[] = "HubCommits";

// This name is there if the model beside it may have parameters of two steps, because a rank was
// lost in the midst of one.
inline constexpr char kMixedSteps[] = "MixedSteps";

// Returns the JSON object in a trainer_state.json. Throws DataLoss if there is none.
nlohmann::json ReadTrainerState(const std::string& file);
// Returns what the Trainer has put under kOwnState. Throws DataLoss, naming the file, if it is not
// there.
StateDict OwnState(const nlohmann::json& json, const std::string& file);

}  // namespace lathe
