// Compares what the ranks of a job were given, before anything is computed. These are the options,
// the files, the model's configuration, labels, tokenizer, and the data for evaluation and
// prediction. The training data and the model's layout are compared later, when they are prepared.
#pragma once

#include "lathe/apps/options/options.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Throws FailedPrecondition if ranks differ. All ranks call it together. One process has nothing to
// compare.
void CheckRanksAgree(const ParsedOptions& parsed, const Task& task, Accelerator& accelerator);

}  // namespace lathe
