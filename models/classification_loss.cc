#include "lathe/models/classification_loss.h"

#include "lathe/core/ops/losses.h"
#include "lathe/core/ops/shape.h"
#include "lathe/models/forward_context.h"

namespace lathe {

Tensor ClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config) {
  const Tensor& labels = batch.labels;  // on the host
  const Tensor there = LabelsFor(batch, logits.device());
  std::string type = config.problem_type();
  if (type.empty()) {
    const bool integers = labels.dtype() == DType::kI64 || labels.dtype() == DType::kI32;
    type = logits.dim(1) == 1 ? "regression"
           : integers         ? "single_label_classification"
                              : "multi_label_classification";
    config.json()["problem_type"] = type;
  }
  if (type == "single_label_classification") {
    Check(labels.ndim() == 1 && !IsFloating(labels.dtype()), "loss",
          "single_label_classification needs integer labels of shape [B] but got ",
          ToString(labels.dtype()), " ", labels.shape());
    // On a device nobody looks at them.
    if (logits.device() != Device{}) CheckLabels(labels.To(DType::kI64), logits.dim(1));
    return CrossEntropy(logits, there.To(DType::kI64).To(logits.device()));
  }
  Check(IsFloating(labels.dtype()), "loss", type, " needs floating labels but got ",
        ToString(labels.dtype()));
  Check(labels.numel() == logits.numel(), "loss", type, " needs ", logits.shape(),
        " labels but got ", labels.shape());
  const Tensor targets = there.Reshape(logits.shape()).To(logits.device());
  if (type == "regression") return MseLoss(logits, targets);
  Check(type == "multi_label_classification", "loss", "unknown problem_type \"", type,
        "\"; known: regression, single_label_classification, multi_label_classification");
  return BceWithLogitsLoss(logits, targets);
}

}  // namespace lathe
