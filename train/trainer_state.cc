#include "lathe/train/trainer_state.h"

#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/non_finite.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

constexpr char kNonFinite[] = "non_finite";

}  // namespace

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

std::string TrainerState::ToText() const {
  nlohmann::json json = ToJson();
  if (stateful_callbacks.contains(kOwnState)) {
    nlohmann::json places = NonFiniteNumbers(json);
    if (!places.empty()) json["stateful_callbacks"][kOwnState][kNonFinite] = std::move(places);
  }
  return DumpJson(json, 2) + "\n";
}

void TrainerState::LoadJson(const nlohmann::json& json, const std::string& file) try {
  const auto number = [&](const char* key) {
    const std::optional<int64_t> value = WholeNumber(json.at(key), 0);
    if (!value) {
      throw DataLoss(file + ": \"" + key + "\" must be a whole number but is " +
                     DumpJson(json.at(key)));
    }
    return *value;
  };
  global_step = number("global_step");
  epoch = json.at("epoch").get<double>();
  num_input_tokens_seen = number("num_input_tokens_seen");
  log_history = json.at("log_history");
  if (!log_history.is_array()) throw DataLoss(file + ": \"log_history\" must be an array");
  if (const auto& best = json.at("best_metric"); !best.is_null()) best_metric = best.get<double>();
  if (!json.at("best_global_step").is_null()) best_global_step = number("best_global_step");
  if (const auto& best = json.at("best_model_checkpoint"); !best.is_null())
    best_model_checkpoint = best.get<std::string>();
} catch (const nlohmann::json::exception& e) {
  throw DataLoss(file + ": " + WithoutTag(e.what()));
}

nlohmann::json ReadTrainerState(const std::string& file) {
  const std::string text = ReadRegularFile(file);
  CheckJsonNesting(text, file);
  nlohmann::json value = ParseJsonOrDiscard(text);
  if (!value.is_object()) throw DataLoss(file + ": is no JSON object");
  const nlohmann::json::json_pointer places =
      nlohmann::json::json_pointer() / "stateful_callbacks" / kOwnState / kNonFinite;
  if (value.contains(places)) RestoreNonFinite(nlohmann::json(value[places]), value, file);
  return value;
}

StateDict OwnState(const nlohmann::json& json, const std::string& file) {
  const auto callbacks = json.value("stateful_callbacks", nlohmann::json());
  if (!callbacks.contains(kOwnState) || !callbacks[kOwnState].contains("attributes"))
    throw DataLoss(file + ": has no \"" + kOwnState + "\" in \"stateful_callbacks\"");
  StateDict own;
  own.values = callbacks[kOwnState]["attributes"];
  return own;
}

}  // namespace lathe
