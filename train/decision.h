// How a trained model's probabilities become predictions, as the arguments `thresholds` and
// `calibrate` ask (train/support/decision_arguments.h).
#pragma once

#include <string>

#include "lathe/data/metrics/metrics.h"
#include "lathe/models/config/config.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Writes the thresholds of the arguments into a model's configuration. If `keep` is set, thresholds
// and a temperature that they don't give stay as they are there. Otherwise these are removed, as
// they belong to the model that a training starts from. Throws as ThresholdsOf does, and if the
// model hasn't several labels at once, unless the threshold is 0.5.
void SetDecision(const TrainingArguments& arguments, bool keep, PretrainedConfig& config);

// Fits what the arguments ask for to predictions for labelled data: first the temperature, then the
// thresholds. Keeps the rest of the predictions' rule.
DecisionRule FitDecision(const TrainingArguments& arguments, const Predictions& predictions);

// Returns a note for people if a fitted temperature lies at one of its bounds (tune_decision.h),
// and nothing otherwise.
std::string NoteOnTemperature(double temperature);

}  // namespace lathe
