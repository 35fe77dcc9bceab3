// Options that were given but change nothing beside the others.
#pragma once

#include <string>
#include <vector>

#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns a line for each option of a training that has no effect, and says why:
// "--eval_steps has no effect without --eval_strategy steps". The arguments are complete
// (CompleteTrainingArguments). An option at its default counts as not given.
std::vector<std::string> IdleOptions(const FinetuneArguments& arguments);

}  // namespace lathe
