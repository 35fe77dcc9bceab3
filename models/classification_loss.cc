#include "lathe/models/classification_loss.h"

#include "lathe/core/base/error.h"
#include "lathe/core/ops/losses.h"
#include "lathe/core/ops/shape.h"
#include "lathe/data/datasets/device_batch.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/forward_context.h"

namespace lathe {

namespace {

Tensor LossOf(const std::string& type, const Tensor& logits, const Batch& batch) {
  const Tensor& labels = batch.labels;  // on the host
  const Tensor there = LabelsFor(batch, logits.device());
  const std::optional<LabelKind> kind = FindLabelKind(type);
  if (!kind) {
    throw InvalidArgument("[loss] unknown problem_type \"" + type + "\"",
                          "known: " + KnownProblemTypes());
  }
  if (kind == LabelKind::kSingleLabel) {
    Check(labels.ndim() == 1 && !IsFloating(labels.dtype()), "loss", type,
          " needs integer labels of shape [B] but got ", ToString(labels.dtype()), " ",
          labels.shape());
    // On a device nothing checks the labels, so this checks the host's.
    if (!logits.device().is_cpu()) CheckLabels(labels.To(DType::kI64), logits.dim(1));
    return CrossEntropy(logits, there.To(DType::kI64).To(logits.device()));
  }
  Check(IsFloating(labels.dtype()), "loss", type, " needs floating labels but got ",
        ToString(labels.dtype()));
  Check(there.numel() == logits.numel(), "loss", type, " needs ", logits.shape(),
        " labels but got ", labels.shape());
  const Tensor targets = there.Reshape(logits.shape()).To(logits.device());
  const Tensor count = NumCountedSequences(batch, logits.device());
  if (kind == LabelKind::kRegression) return MseLoss(logits, targets, 0, count);
  return BceWithLogitsLoss(logits, targets, 0, count);
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
  const Tensor loss = LossOf(type, logits, batch);
  if (batch.notes != nullptr) batch.notes->loss_without_surplus = loss.impl();
  return loss;
}

}  // namespace lathe
