// --thresholds and --calibrate of `finetune`.
#pragma once

#include <ostream>

#include "lathe/models/sequence_classifier.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Gives a model that is evaluated or predicts, but is not trained, the thresholds of the options.
// Saves its config.json into `out`, unless that is null. Throws UsageError if the output folder is
// not the model's.
void SetDecisionOfModel(const FinetuneArguments& options, SequenceClassifier& model,
                        OutputDir* out);

// Fits thresholds and temperature to the evaluation on the validation data, if the options ask for
// it. Sets the rule of the evaluation and of the task's model, whose config.json it saves into
// `out`, unless that is null.
void FitDecisionTo(Evaluation& evaluation, const FinetuneArguments& options, const Task& task,
                   OutputDir* out, std::ostream& printed);

}  // namespace lathe
