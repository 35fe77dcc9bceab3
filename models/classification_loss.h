// The loss of a sequence classifier for its problem type. Transformers infers and computes it in
// the same way.
#pragma once

#include "lathe/data/datasets/batch.h"
#include "lathe/models/config/config.h"

namespace lathe {

// Returns the loss for logits: [B, num_labels]. The batch's labels are [B] i64, [B] f32 or [B,
// num_labels] f32.
//
// If the config has no problem_type yet, the first batch decides it, and it is stored in the
// config. One label means regression, integer labels mean single_label_classification, and all else
// means multi_label_classification.
//
// Regression uses the mean squared error. single_label_classification uses the cross-entropy over
// labels that are not kIgnoreIndex. multi_label_classification uses the binary cross-entropy with
// logits, its mean over batch and labels.
//
// The loss leaves out the surplus sequences of Batch::on_device, and Batch::notes records that.
Tensor ClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config);

// Does the same if the config has a problem_type. If it has none, the labels of each batch decide,
// and the config stays as it is. One label means regression. Integer labels [B] are classes:
// negative ones are ignored, and if all are, the loss is 0. Labels [B, num_labels] are weights of
// the classes, for SoftCrossEntropy. Transformers' DeBERTa has these rules.
Tensor SoftClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config);

// Either of them.
using LossFunction = Tensor (*)(const Tensor& logits, const Batch& batch, PretrainedConfig& config);

}  // namespace lathe
