#include "lathe/train/callbacks/model_card_callback.h"

#include <filesystem>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/support/hyperparameters.h"

namespace lathe {
namespace {

// Returns the last evaluation while training or, if the best model was loaded at the end, that
// model's.
nlohmann::json EvaluationOfSavedModel(const TrainingArguments& arguments,
                                      const TrainerState& state) {
  const bool is_loaded =
      arguments.load_best_model_at_end && state.best_global_step && !state.best_model_is_gone;
  nlohmann::json found;
  for (const nlohmann::json& entry : state.log_history) {
    if (!entry.contains("eval_loss")) continue;
    const bool is_best = state.best_global_step && entry.value("step", nlohmann::json()) ==
                                                       nlohmann::json(*state.best_global_step);
    if (!is_loaded || is_best) found = entry;
  }
  return found;
}

// Returns the last part of the path that is a name: "out" for "models/out/." as well.
std::string NameOf(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_filename() ? path.filename().string() : "model";
}

}  // namespace

ModelCardCallback::ModelCardCallback(ModelCardFacts facts) : facts_(std::move(facts)) {}

void ModelCardCallback::OnTrainEnd(const TrainingArguments& arguments, const TrainerState& state,
                                   TrainerControl& control) {
  if (!state.is_world_process_zero || arguments.output_dir.empty()) return;
  for (std::string& warning : Write(arguments, state, EvaluationOfSavedModel(arguments, state)))
    control.warnings.push_back(std::move(warning));
}

std::vector<std::string> ModelCardCallback::Write(const TrainingArguments& arguments,
                                                  const TrainerState& state,
                                                  const nlohmann::json& evaluation) {
  const std::string path = (std::filesystem::path(arguments.output_dir) / kModelCard).string();
  std::string warning;
  if (HasForeignCard(path)) {
    warning = "warning: " + path +
              " was edited or is not Lathe's, so it stays as it is; remove it to get a new card";
  } else {
    ModelCardFacts facts = facts_;
    facts.model_name = NameOf(arguments.output_dir);
    if (facts.hyperparameters.empty()) facts.hyperparameters = TrainerHyperparameters(arguments);
    facts.log_history = state.log_history;
    facts.evaluation = evaluation;
    try {
      WriteFileAtomically(path, ModelCard(facts));
    } catch (const Error& e) {
      warning = "warning: no model card was written: " + e.message();
    }
  }
  if (warning.empty() || std::exchange(warned_, true)) return {};
  return {warning};
}

}  // namespace lathe
