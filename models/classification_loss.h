// The loss of a sequence classifier by its problem type, as Transformers infers and computes it.
#pragma once

#include "lathe/data/datasets/batch.h"
#include "lathe/models/config.h"

namespace lathe {

// If the config has no problem_type yet: one label -> regression, integer labels ->
// single_label_classification, otherwise multi_label_classification; decided here, on the first
// batch, and stored in the config. Regression: mean squared error; single: cross-entropy over
// labels that are not -100; multi: binary cross-entropy with logits, mean over batch and labels.
// logits: [B, num_labels]; the batch's labels: [B] i64, [B] f32 or [B, num_labels] f32.
Tensor ClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config);

}  // namespace lathe
