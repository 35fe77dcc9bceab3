#include "lathe/train/decision.h"

#include "lathe/data/metrics/tune_decision.h"
#include "lathe/models/config/decision_rule_config.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/train/support/decision_arguments.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {

void SetDecision(const TrainingArguments& arguments, bool keep, PretrainedConfig& config) {
  CheckDecisionArguments(arguments);
  DecisionRule rule;
  if (keep) rule = ReadDecisionRule(config);
  const LabelKind kind = OutputKind(config.problem_type(), config.num_labels());
  const bool several = kind == LabelKind::kMultiLabel;
  // A file of arguments may spell out the default.
  if (!arguments.thresholds.empty() && (several || !IsDefaultThreshold(arguments.thresholds))) {
    if (!several) {
      throw UsageError(
          "thresholds are for several labels at once, and the labels are " + ProblemType(kind),
          "leave thresholds out");
    }
    if (arguments.thresholds != "tune")
      rule.thresholds = ThresholdsOf(arguments.thresholds, config.label_names());
  }
  if (arguments.calibrate == "temperature" && kind == LabelKind::kRegression) {
    throw UsageError("calibrate is for classifiers, and the labels are regression",
                     "leave calibrate out");
  }
  WriteDecisionRule(rule, config);
}

DecisionRule FitDecision(const TrainingArguments& arguments, const Predictions& predictions) {
  Predictions fitted = predictions;
  if (arguments.calibrate == "temperature") fitted.rule.temperature = FitTemperature(fitted);
  if (arguments.thresholds == "tune") fitted.rule.thresholds = TuneThresholds(fitted);
  return fitted.rule;
}

std::string NoteOnTemperature(double temperature) {
  if (temperature == kLowestTemperature) {
    return "note: this is the lowest temperature, because the validation data have next to no "
           "errors; later probabilities will be near 0 and 1, and more validation rows may show "
           "errors";
  }
  if (temperature == kHighestTemperature) {
    return "note: this is the highest temperature, because the predictions for the validation data "
           "are no better than chance; later probabilities will be nearly equal";
  }
  return "";
}

}  // namespace lathe
