// The flags of finetune about thresholds and calibration (train/support/decision_arguments.h).
#pragma once

#include "lathe/apps/cli/flags.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

void AddDecisionFlags(FlagTable& flags, TrainingArguments& o);

// Throws InvalidArgument for values that can't be read, and for those that need --do_eval.
void ValidateDecision(const TrainingArguments& o);

}  // namespace lathe
