// Reads the arguments --thresholds and --calibrate. train/decision.h obeys them.
#pragma once

#include <string>
#include <vector>

#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Throws InvalidArgument, naming the argument, if `thresholds` or `calibrate` can't be read.
// Thresholds are "", "tune", a number from 0 to 1, "a=0.4,b=0.6" or a JSON object such as {"a, b":
// 0.4, "c": 0.6}. If they end with ".json", they name a file with such an object.
void CheckDecisionArguments(const TrainingArguments& arguments);

// Returns true if an evaluation has to fit the thresholds or the temperature.
bool FitsDecision(const TrainingArguments& arguments);

// Returns true if `thresholds` is the number 0.5, which is the default.
bool IsDefaultThreshold(const std::string& thresholds);

// Returns the thresholds for labels of these names. `text` is a number, or one for each label in
// these forms. Throws if it names a label that is none of these, or not all of them.
std::vector<double> ThresholdsOf(const std::string& text, const std::vector<std::string>& names);

}  // namespace lathe
