#include "lathe/models/classification_loss.h"

#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/losses.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/weighted/weighted_cross_entropy.h"
#include "lathe/core/ops/weighted/weighted_pairs.h"
#include "lathe/data/datasets/device_batch.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/forward_context.h"

namespace lathe {

namespace {

// The classes' weights on this device; undefined if there are none.
Tensor WeightsOn(Device device, const LossOptions& options) {
  return options.class_weights.defined() ? options.class_weights.To(device) : Tensor();
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

// The loss of labels that are numbers of classes. `type` stands for the rule in errors.
Tensor LossOfClasses(const std::string& type, const Tensor& logits, const Batch& batch,
                     const LossOptions& options, int64_t ignore_index) {
  const Tensor& labels = batch.labels;  // on the host
  Check(labels.ndim() == 1 && !IsFloating(labels.dtype()), "loss", type,
        " needs integer labels of shape [B] but got ", ToString(labels.dtype()), " ",
        labels.shape());
  // On a device nothing checks the labels, so this checks the host's.
  if (!logits.device().is_cpu()) CheckLabels(labels.To(DType::kI64), logits.dim(1), ignore_index);
  const Tensor there = LabelsFor(batch, logits.device()).To(DType::kI64).To(logits.device());
  const Tensor sample_weights = SampleWeightsFor(batch, logits.device());
  if (options.plain() && !sample_weights.defined())
    return CrossEntropy(logits, there, ignore_index);
  return WeightedCrossEntropy(logits, there,
                              {.ignore_index = ignore_index,
                               .class_weights = WeightsOn(logits.device(), options),
                               .row_weights = sample_weights,
                               .label_smoothing = options.label_smoothing,
                               .focal_gamma = options.focal_gamma});
}

// The losses of scores and of several labels at once.
Tensor LossOfNumbers(const std::string& type, LabelKind kind, const Tensor& logits,
                     const Batch& batch, const LossOptions& options) {
  const Tensor targets = Targets(type, logits, batch);
  const Tensor count = NumCountedSequences(batch, logits.device());
  const Tensor sample_weights = SampleWeightsFor(batch, logits.device());
  if (kind == LabelKind::kRegression) {
    Check(options.plain(), "loss", type, " has no classes to weigh");
    return sample_weights.defined() ? WeightedMse(logits, targets, sample_weights, count)
                                    : MseLoss(logits, targets, 0, count);
  }
  Check(options.label_smoothing == 0, "loss", type, " has no label smoothing");
  if (options.plain() && !sample_weights.defined())
    return BceWithLogitsLoss(logits, targets, 0, count);
  return WeightedBceWithLogits(logits, targets,
                               {.positive_weights = WeightsOn(logits.device(), options),
                                .row_weights = sample_weights,
                                .focal_gamma = options.focal_gamma,
                                .num_rows = count});
}

Tensor LossOf(const std::string& type, const Tensor& logits, const Batch& batch,
              const LossOptions& options) {
  const std::optional<LabelKind> kind = FindLabelKind(type);
  if (!kind) {
    throw InvalidArgument("[loss] unknown problem_type \"" + type + "\"",
                          "known: " + KnownProblemTypes());
  }
  if (kind == LabelKind::kSingleLabel)
    return LossOfClasses(type, logits, batch, options, kIgnoreIndex);
  return LossOfNumbers(type, *kind, logits, batch, options);
}

// Notes the loss as one that leaves out surplus sequences.
Tensor Noted(const Tensor& loss, const Batch& batch) {
  if (batch.notes != nullptr) batch.notes->loss_without_surplus = loss.impl();
  return loss;
}

}  // namespace

Tensor ClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config,
                          const LossOptions& options) {
  if (!batch.is_on_host()) return ClassificationLoss(logits, batch.To(Device{}), config, options);
  std::string type = config.problem_type();
  if (type.empty()) {
    const DType dtype = batch.labels.dtype();
    const bool integers = dtype == DType::kI64 || dtype == DType::kI32;
    type = ProblemType(logits.dim(1) == 1 ? LabelKind::kRegression
                       : integers         ? LabelKind::kSingleLabel
                                          : LabelKind::kMultiLabel);
    config.json()["problem_type"] = type;
  }
  return Noted(LossOf(type, logits, batch, options), batch);
}

Tensor SoftClassificationLoss(const Tensor& logits, const Batch& batch, PretrainedConfig& config,
                              const LossOptions& options) {
  if (!batch.is_on_host())
    return SoftClassificationLoss(logits, batch.To(Device{}), config, options);
  if (!config.problem_type().empty()) return ClassificationLoss(logits, batch, config, options);
  if (logits.dim(1) == 1) {
    return Noted(LossOf(ProblemType(LabelKind::kRegression), logits, batch, options), batch);
  }
  const std::string rule = "a model without problem_type";
  if (batch.labels.ndim() == 1) {
    return Noted(LossOfClasses(rule, logits, batch, options, kIgnoreNegative), batch);
  }
  Check(options.plain() && !batch.sample_weights.defined(), "loss", rule,
        " has no weights for labels of shape ", batch.labels.shape());
  return Noted(SoftCrossEntropy(logits, Targets(rule, logits, batch), 0,
                                NumCountedSequences(batch, logits.device())),
               batch);
}

}  // namespace lathe
