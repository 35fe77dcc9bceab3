// EvaluationReport: all that a classifier's evaluation shows about its classes.
//
//   EvaluationReport report = MakeEvaluationReport(predictions);
//   if (report.labels[2].scores.recall) ...       // undefined without samples of class 2
//   std::cout << ReportJson(report, names).dump(4);
//
// Definitions are scikit-learn's (class_scores.h, ranking.h, precision_recall_curve.h), and Guo et
// al.'s for calibration. What they leave undefined is nullopt here and null in JSON, never 0.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/metrics/calibration.h"
#include "lathe/data/metrics/class_scores.h"
#include "lathe/data/metrics/metrics.h"
#include "lathe/data/metrics/precision_recall_curve.h"
#include "lathe/data/metrics/ranking.h"

namespace lathe {

// One class, or one of several labels at once.
struct LabelReport {
  ClassCounts counts;
  ClassScores scores;
  // How its probability ranks the samples: this label against the rest. There is no curve without
  // samples of the label, and none of the first of two classes: it would tell what the second does.
  RankingScores ranking = {};
  std::optional<PrecisionRecallCurve> curve = {};
  // Both are for one of several labels at once only. They are the mean of -log of the probability
  // of what is right, and the calibration of the likelier answer, yes or no.
  std::optional<double> log_loss = {};
  std::optional<double> calibration_error = {};
};

struct EvaluationReport {
  LabelKind kind = LabelKind::kSingleLabel;
  int64_t num_samples = 0;
  std::vector<LabelReport> labels = {};
  ClassScores micro = {}, macro = {}, weighted = {};
  std::optional<double> accuracy = {};  // several labels: of whole rows
  // Two classes: those of the second one, as in scikit-learn. Otherwise the means of the labels'
  // defined values (for classes one-vs-rest, macro).
  std::optional<double> roc_auc = {}, average_precision = {};
  // The mean of -log of the probability of what is right, over samples; several labels: also over
  // labels. It is computed from logits and not clipped.
  std::optional<double> log_loss = {};
  // It tells how far the probability of the predicted class can be trusted. With several labels it
  // counts all answers, yes or no, together.
  Calibration calibration = {};
  std::vector<ConfusionCell> confusion = {};  // of single labels
  DecisionRule rule = {};                     // by which all of this was computed
};

// Throws for regressions, and as ComputeMetrics does for values that don't fit each other.
EvaluationReport MakeEvaluationReport(const Predictions& predictions);

// Returns the report as JSON. `names` are those of the labels. Up to 100 classes have their
// confusion matrix in full, rows by the right class; more have a list of its cells above 0. The
// rule's temperature and thresholds are named if they are not 1 and one half. The curve of a class
// has at most 100 points. With more than 100 classes it has fewer, so that all curves have about
// 10,000 points together, but never fewer than ten.
nlohmann::json ReportJson(const EvaluationReport& report, const std::vector<std::string>& names);

}  // namespace lathe
