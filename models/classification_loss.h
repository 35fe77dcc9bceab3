// The loss of a sequence classifier for its problem type. Transformers infers and computes it in
// the same way.
#pragma once

#include <vector>

#include "lathe/data/datasets/batch.h"
#include "lathe/models/config/config.h"

namespace lathe {

// What changes the loss beyond the kind of labels. By default nothing does.
struct LossOptions {
  // [num_labels] f32, best on the model's device; undefined: all 1. For classes they are the
  // weights of PyTorch's cross_entropy, for several labels at once its pos_weight.
  Tensor class_weights = {};
  double label_smoothing = 0;  // for classes, as Transformers' LabelSmoother
  double focal_gamma = 0;      // for classes and several labels at once; see core/ops/weighted

  bool plain() const {
    return !class_weights.defined() && label_smoothing == 0 && focal_gamma == 0;
  }
  std::vector<float> ClassWeights() const {
    return class_weights.defined() ? class_weights.ToVector<float>() : std::vector<float>();
  }
};

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
// With options or Batch::sample_weights it is the same loss with weights (core/ops/weighted), a
// mean over their sum. Throws for options that the kind of labels doesn't have.
//
// The loss leaves out the surplus sequences of Batch::on_device, and Batch::notes records that.
Tensor ClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config,
                          const LossOptions& options = {});

// Does the same if the config has a problem_type. If it has none, the labels of each batch decide,
// and the config stays as it is. One label means regression. Integer labels [B] are classes:
// negative ones are ignored, and if all are, the loss is 0. Labels [B, num_labels] are weights of
// the classes, for SoftCrossEntropy, which takes neither options nor sample weights. Transformers'
// DeBERTa has these rules.
Tensor SoftClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config,
                              const LossOptions& options = {});

// Either of them.
using LossFunction = Tensor (*)(const Tensor& logits, const Batch& batch, PretrainedConfig& config,
                                const LossOptions& options);

}  // namespace lathe
