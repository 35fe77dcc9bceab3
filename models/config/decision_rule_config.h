// The keys of config.json that hold a classifier's DecisionRule. They are Lathe's own; Transformers
// keeps them and reads none of them.
//
//   lathe_thresholds   a number from 0 to 1 for each of several labels, in the order of id2label
//   lathe_temperature  a number above 0
#pragma once

#include "lathe/data/metrics/decision_rule.h"
#include "lathe/models/config/config.h"

namespace lathe {

inline constexpr char kThresholdsKey[] = "lathe_thresholds",
                      kTemperatureKey[] = "lathe_temperature";

// Returns the rule of a configuration; that of a model without the keys is DecisionRule{}. Throws
// for values of another kind or number, and for thresholds of a model that hasn't several labels.
DecisionRule ReadDecisionRule(const PretrainedConfig& config);

// Sets the keys, and removes those of values that the rule leaves to their defaults.
void WriteDecisionRule(const DecisionRule& rule, PretrainedConfig& config);

}  // namespace lathe
