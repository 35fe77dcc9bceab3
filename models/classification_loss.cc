#include "lathe/models/classification_loss.h"

#include "lathe/core/base/error.h"
#include "lathe/core/ops/losses.h"
#include "lathe/core/ops/shape.h"
#include "lathe/data/datasets/device_batch.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/forward_context.h"

namespace lathe {

namespace {

// The loss of labels that are numbers of classes. `type` stands for the rule in errors.
Tensor LossOfClasses(const std::string& type, const Tensor& logits, const Batch& batch,
                     int64_t ignore_index) {
  const Tensor& labels = batch.labels;  // on the host
  Check(labels.ndim() == 1 && !IsFloating(labels.dtype()), "loss", type,
        " needs integer labels of shape [B] but got ", ToString(labels.dtype()), " ",
        labels.shape());
  // On a device nothing checks the labels, so this checks the host's.
  if (!logits.device().is_cpu()) CheckLabels(labels.To(DType::kI64), logits.dim(1), ignore_index);
  const Tensor there = LabelsFor(batch, logits.device());
  return CrossEntropy(logits, there.To(DType::kI64).To(logits.device()), ignore_index);
}

// The labels as floating numbers with the logits' shape, on their device.
Tensor Targets(const std::string& type, const Tensor& logits, const Batch& batch) {
  Check(IsFloating(batch.labels.dtype()), "loss", type, " needs floating labels but got ",
        ToString(batch.labels.dtype()));
  const Tensor there = LabelsFor(batch, logits.device());
  Check(there.numel() == logits.numel(), "loss", type, " needs ", logits.shape(),
        " labels but got ", batch.labels.shape());
  return there.Reshape(logits.shape()).To(logits.device());
}

Tensor LossOf(const std::string& type, const Tensor& logits, const Batch& batch) {
  const std::optional<LabelKind> kind = FindLabelKind(type);
  if (!kind) {
    throw InvalidArgument("[loss] unknown problem_type \"" + type + "\"",
                          "known: " + KnownProblemTypes());
  }
  if (kind == LabelKind::kSingleLabel) return LossOfClasses(type, logits, batch, kIgnoreIndex);
  const Tensor targets = Targets(type, logits, batch);
  const Tensor count = NumCountedSequences(batch, logits.device());
  if (kind == LabelKind::kRegression) return MseLoss(logits, targets, 0, count);
  return BceWithLogitsLoss(logits, targets, 0, count);
}

// Notes the loss as one that leaves out surplus sequences.
Tensor Noted(const Tensor& loss, const Batch& batch) {
  if (batch.notes != nullptr) batch.notes->loss_without_surplus = loss.impl();
  return loss;
}

}  // namespace

Tensor ClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config) {
  std::string type = config.problem_type();
  if (type.empty()) {
    const DType dtype = batch.labels.dtype();
    const bool integers = dtype == DType::kI64 || dtype == DType::kI32;
    type = ProblemType(logits.dim(1) == 1 ? LabelKind::kRegression
                       : integers         ? LabelKind::kSingleLabel
                                          : LabelKind::kMultiLabel);
    config.json()["problem_type"] = type;
  }
  return Noted(LossOf(type, logits, batch), batch);
}

Tensor SoftClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config) {
  if (!config.problem_type().empty()) return ClassificationLoss(logits, batch, config);
  if (logits.dim(1) == 1) {
    return Noted(LossOf(ProblemType(LabelKind::kRegression), logits, batch), batch);
  }
  const std::string rule = "a model without problem_type";
  if (batch.labels.ndim() == 1) {
    return Noted(LossOfClasses(rule, logits, batch, kIgnoreNegative), batch);
  }
  return Noted(SoftCrossEntropy(logits, Targets(rule, logits, batch), 0,
                                NumCountedSequences(batch, logits.device())),
               batch);
}

}  // namespace lathe
