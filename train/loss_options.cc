#include "lathe/train/loss_options.h"

#include "lathe/core/base/error.h"
#include "lathe/core/ops/losses.h"
#include "lathe/train/support/class_weights.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

// Returns how many samples have each label, and in `total` how many have a class at all.
std::vector<int64_t> CountLabels(const TokenizedDataset& train, size_t num_labels, int64_t& total) {
  std::vector<int64_t> counts(num_labels);
  total = 0;
  if (train.kind == LabelKind::kMultiLabel) {
    const std::vector<float> flags = train.AllScores();
    for (size_t i = 0; i < flags.size(); ++i) counts[i % num_labels] += flags[i] > 0.5f;
    total = train.size();
    return counts;
  }
  for (const int64_t label : train.classes) {
    if (label == kIgnoreIndex) continue;
    ++counts.at(static_cast<size_t>(label));
    ++total;
  }
  return counts;
}

std::vector<float> BalancedWeights(const TokenizedDataset& train,
                                   const std::vector<std::string>& labels) {
  int64_t total = 0;
  const std::vector<int64_t> counts = CountLabels(train, labels.size(), total);
  const bool several = train.kind == LabelKind::kMultiLabel;
  std::vector<float> weights;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (counts[i] == 0 || (several && counts[i] == total)) {
      throw UsageError("class_weights balanced: " +
                           std::string(counts[i] == 0 ? "no training sample has the label \""
                                                      : "all training samples have the label \"") +
                           labels[i] + "\"",
                       "add samples, or give weights as LABEL=WEIGHT");
    }
    const double count = static_cast<double>(counts[i]);
    const double others = static_cast<double>(total) - count;
    weights.push_back(static_cast<float>(
        several ? others / count
                : static_cast<double>(total) / (static_cast<double>(labels.size()) * count)));
  }
  return weights;
}

// Throws for an option that the labels don't have.
void CheckKind(const TrainingArguments& a, LabelKind kind) {
  const bool scores = kind == LabelKind::kRegression;
  const char* const labels =
      scores ? "the labels are scores" : "a row may have several labels at once";
  const auto refuse = [&](bool given, const char* name, const char* what) {
    if (!given) return;
    throw UsageError(std::string(name) + " needs " + what + ", but " + labels,
                     std::string("leave ") + name + " out");
  };
  if (kind == LabelKind::kSingleLabel) return;
  refuse(a.label_smoothing_factor > 0, "label_smoothing_factor", "one class for each row");
  refuse(scores && a.focal_gamma > 0, "focal_gamma", "classes");
  refuse(scores && a.class_weights != "none", "class_weights", "classes");
}

}  // namespace

LossOptions LossOptionsOf(const TrainingArguments& arguments,
                          const std::vector<std::string>& labels, LabelKind kind,
                          const TokenizedDataset* train, Device device) {
  CheckKind(arguments, kind);
  LossOptions options = {.label_smoothing = arguments.label_smoothing_factor,
                         .focal_gamma = arguments.focal_gamma};
  if (arguments.class_weights == "none") return options;
  std::vector<float> weights;
  if (arguments.class_weights == "balanced") {
    Check(train != nullptr, "loss_options", "balanced class weights need training data");
    weights = BalancedWeights(*train, labels);
  } else {
    weights = InOrderOfLabels(ReadClassWeights(arguments.class_weights), labels);
  }
  options.class_weights = Tensor::FromVector(weights).To(device);
  return options;
}

}  // namespace lathe
