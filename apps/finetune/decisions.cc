#include "lathe/apps/finetune/decisions.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lathe/apps/results/results_table.h"
#include "lathe/core/checkpoint/manifest.h"
#include "lathe/models/config/decision_rule_config.h"
#include "lathe/train/decision.h"
#include "lathe/train/support/decision_arguments.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

// Returns true if a training can go on from the folder.
bool IsResumable(const std::string& folder) try {
  return ReadManifest(folder).resumable;
} catch (const Error&) {
  return false;
}

}  // namespace

void SetDecisionOfModel(const FinetuneArguments& options, SequenceClassifier& model,
                        OutputDir* out) {
  // The default changes nothing in a model without thresholds of its own.
  const bool keeps_thresholds =
      options.thresholds.empty() || (IsDefaultThreshold(options.thresholds) &&
                                     ReadDecisionRule(model.config()).thresholds.empty());
  if (options.do_train || (keeps_thresholds && options.calibrate == "no")) return;
  std::error_code code;
  if (!std::filesystem::equivalent(options.output_dir, options.model_name_or_path, code)) {
    throw UsageError(
        "--thresholds and --calibrate change the model's config.json, so --output_dir must be the "
        "model's folder unless --do_train is given",
        "pass the folder of --model_name_or_path as --output_dir");
  }
  if (IsResumable(options.output_dir)) {
    throw UsageError(options.output_dir +
                         " is a checkpoint, and no training could go on from it with "
                         "another config.json",
                     "give --thresholds and --calibrate a copy without its " +
                         std::string(kManifestFile) + ", or the folder of the trained model");
  }
  SetDecision(options, /*keep=*/true, model.config());
  if (out != nullptr && !FitsDecision(options)) model.SaveConfig(out->path());
}

void FitDecisionTo(Evaluation& evaluation, const FinetuneArguments& options, const Task& task,
                   OutputDir* out, std::ostream& printed) {
  if (!FitsDecision(options)) return;
  evaluation.rule = FitDecision(options, PredictionsOf(evaluation, *task.validation.dataset));
  WriteDecisionRule(evaluation.rule, task.model->config());
  if (out != nullptr) task.model->SaveConfig(out->path());
  nlohmann::json fitted = nlohmann::json::object();
  if (options.calibrate == "temperature") fitted["temperature"] = evaluation.rule.temperature;
  for (size_t c = 0; options.thresholds == "tune" && c < task.label_names.size(); ++c)
    fitted["threshold of " + task.label_names[c]] = evaluation.rule.thresholds[c];
  PrintMetrics(printed, "fitted to the validation data", fitted);
  if (options.calibrate != "temperature") return;
  const std::string note = NoteOnTemperature(evaluation.rule.temperature);
  if (!note.empty()) printed << note << std::endl;
}

}  // namespace lathe
