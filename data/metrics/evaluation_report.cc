#include "lathe/data/metrics/evaluation_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/data/metrics/probabilities.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostClassesInMatrix = 100;
// Points of curves: of all labels together, and of one label at least and at most.
constexpr size_t kMostPointsOfAll = 10'000, kLeastPoints = 10, kMostPoints = 100;

std::optional<double> Mean(double sum, size_t count) {
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

void CheckPredictions(const Predictions& p) {
  const auto width = static_cast<size_t>(std::max<int64_t>(1, p.num_labels));
  for (size_t i = 0; i < p.logits.size(); ++i) {
    Check(std::isfinite(p.logits[i]), "report", "logits of sample ", i / width,
          " are not finite: ", p.logits[i]);
  }
  const size_t expected =
      p.kind == LabelKind::kMultiLabel ? p.scores.size() : p.classes.size() * width;
  Check(p.logits.size() == expected, "report", "expected ", expected, " logits but got ",
        p.logits.size());
}

// Fills in what both kinds of labels have alike.
void AddScores(EvaluationReport& report, const std::vector<ClassCounts>& counts) {
  for (const ClassCounts& count : counts)
    report.labels.push_back({.counts = count, .scores = ScoresOf(count)});
  report.micro = MicroMean(counts);
  report.macro = MacroMean(counts);
  report.weighted = WeightedMean(counts);
}

bool IsBinary(const EvaluationReport& report) {
  return report.kind == LabelKind::kSingleLabel && report.labels.size() == 2;
}

bool HasCurve(const EvaluationReport& report, size_t label) {
  return !IsBinary(report) || label == 1;
}

// Fills in how well the probabilities `scores` of a label find the samples that have it.
void AddRanking(EvaluationReport& report, size_t label, const std::vector<double>& scores,
                const std::vector<uint8_t>& positives) {
  const std::vector<RankLevel> levels = RankLevels(scores, positives);
  report.labels[label].ranking = RankScores(levels);
  if (!HasCurve(report, label)) return;
  const size_t points =
      std::clamp(kMostPointsOfAll / report.labels.size(), kLeastPoints, kMostPoints);
  report.labels[label].curve = MakePrecisionRecallCurve(levels, points);
}

// Fills in the means of what AddRanking has filled in.
void AddMeanRankings(EvaluationReport& report) {
  std::vector<std::optional<double>> areas, precisions;
  for (const LabelReport& label : report.labels) {
    areas.push_back(label.ranking.roc_auc);
    precisions.push_back(label.ranking.average_precision);
  }
  const bool binary = IsBinary(report);
  report.roc_auc = binary ? areas[1] : MeanOfDefined(areas);
  report.average_precision = binary ? precisions[1] : MeanOfDefined(precisions);
}

EvaluationReport ReportOfClasses(const Predictions& p) {
  const Probabilities probabilities(p.kind, p.num_labels, p.logits, p.rule.temperature);
  const std::vector<int64_t> predicted = ArgMax(p.logits, p.num_labels);
  EvaluationReport report{.kind = p.kind, .num_samples = std::ssize(p.classes)};
  AddScores(report, CountClasses(predicted, p.classes, p.num_labels));
  report.confusion = ConfusionCells(predicted, p.classes);
  double loss = 0;
  for (size_t i = 0; i < p.classes.size(); ++i) {
    const auto sample = static_cast<int64_t>(i);
    loss += probabilities.NegativeLog(sample, p.classes[i]);
    report.calibration.Add(probabilities.Of(sample, predicted[i]), predicted[i] == p.classes[i]);
  }
  report.log_loss = Mean(loss, p.classes.size());
  if (!p.classes.empty()) report.accuracy = Accuracy(predicted, p.classes);
  std::vector<uint8_t> positives(p.classes.size());
  for (int64_t c = 0; c < p.num_labels; ++c) {
    for (size_t i = 0; i < positives.size(); ++i) positives[i] = p.classes[i] == c;
    AddRanking(report, static_cast<size_t>(c), probabilities.OfLabel(c), positives);
  }
  AddMeanRankings(report);
  return report;
}

EvaluationReport ReportOfLabels(const Predictions& p) {
  const Probabilities probabilities(p.kind, p.num_labels, p.logits, p.rule.temperature);
  const int64_t n = probabilities.num_samples();
  EvaluationReport report{.kind = p.kind, .num_samples = n};
  const std::vector<uint8_t> predicted = PredictedLabels(p);
  std::vector<uint8_t> right;
  for (const float score : p.scores) right.push_back(score > 0.5f);
  AddScores(report, CountLabels(predicted, right, p.num_labels));
  double loss_of_all = 0;
  for (int64_t c = 0; c < p.num_labels; ++c) {
    LabelReport& label = report.labels[static_cast<size_t>(c)];
    const std::vector<double> scores = probabilities.OfLabel(c);
    std::vector<uint8_t> positives(scores.size());
    Calibration calibration;
    double loss = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bool positive = right[static_cast<size_t>(i * p.num_labels + c)] != 0;
      const double score = scores[static_cast<size_t>(i)];
      positives[static_cast<size_t>(i)] = positive;
      loss += positive ? probabilities.NegativeLog(i, c) : probabilities.NegativeLogOfAbsence(i, c);
      for (Calibration* bins : {&calibration, &report.calibration})
        bins->Add(std::max(score, 1 - score), (score > 0.5) == positive);
    }
    AddRanking(report, static_cast<size_t>(c), scores, positives);
    label.log_loss = Mean(loss, scores.size());
    label.calibration_error = calibration.Error();
    loss_of_all += loss;
  }
  report.log_loss = Mean(loss_of_all, p.logits.size());
  if (n > 0) report.accuracy = SubsetAccuracy(predicted, right, p.num_labels);
  AddMeanRankings(report);
  return report;
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json ScoresJson(const ClassScores& scores) {
  return {{"precision", OrNull(scores.precision)},
          {"recall", OrNull(scores.recall)},
          {"f1", OrNull(scores.f1)},
          {"support", scores.support}};
}

Json CurveJson(const std::optional<PrecisionRecallCurve>& curve) {
  if (!curve) return nullptr;
  return {{"precision", curve->precision},
          {"recall", curve->recall},
          {"thresholds", curve->thresholds}};
}

Json LabelJson(size_t c, const std::string& name, const EvaluationReport& report) {
  const LabelReport& label = report.labels[c];
  Json json = ScoresJson(label.scores);
  json["label"] = name;
  json["predicted"] = label.counts.predicted;
  json["roc_auc"] = OrNull(label.ranking.roc_auc);
  json["average_precision"] = OrNull(label.ranking.average_precision);
  if (HasCurve(report, c)) json["precision_recall_curve"] = CurveJson(label.curve);
  if (report.kind != LabelKind::kMultiLabel) return json;
  json["log_loss"] = OrNull(label.log_loss);
  json["expected_calibration_error"] = OrNull(label.calibration_error);
  const int64_t missed = label.counts.actual - label.counts.correct;
  const int64_t wrong = label.counts.predicted - label.counts.correct;
  json["confusion"] = {{"true_positives", label.counts.correct},
                       {"false_positives", wrong},
                       {"false_negatives", missed},
                       {"true_negatives", report.num_samples - label.counts.actual - wrong}};
  return json;
}

Json BinsJson(const Calibration& calibration) {
  Json bins = Json::array();
  for (int b = 0; b < Calibration::kNumBins; ++b) {
    const CalibrationBin& bin = calibration.bins()[static_cast<size_t>(b)];
    const auto count = static_cast<size_t>(bin.count);
    bins.push_back({{"above", b == 0 ? 0.0 : Calibration::EndOf(b - 1)},
                    {"up_to", Calibration::EndOf(b)},
                    {"count", bin.count},
                    {"confidence", OrNull(Mean(bin.confidence_sum, count))},
                    {"accuracy", OrNull(Mean(static_cast<double>(bin.correct), count))}});
  }
  return bins;
}

void AddConfusion(const EvaluationReport& report, const std::vector<std::string>& names,
                  Json& json) {
  const size_t width = report.labels.size();
  if (width <= kMostClassesInMatrix) {
    std::vector<std::vector<int64_t>> matrix(width, std::vector<int64_t>(width));
    for (const ConfusionCell& cell : report.confusion)
      matrix[static_cast<size_t>(cell.label)][static_cast<size_t>(cell.prediction)] = cell.count;
    json["confusion_matrix"] = matrix;
    return;
  }
  Json& cells = json["confusion_cells"] = Json::array();
  for (const ConfusionCell& cell : report.confusion) {
    cells.push_back({{"label", names[static_cast<size_t>(cell.label)]},
                     {"prediction", names[static_cast<size_t>(cell.prediction)]},
                     {"count", cell.count}});
  }
}

}  // namespace

EvaluationReport MakeEvaluationReport(const Predictions& predictions) {
  Check(predictions.kind != LabelKind::kRegression, "report", "a regression has no classes");
  CheckPredictions(predictions);
  EvaluationReport report = predictions.kind == LabelKind::kMultiLabel
                                ? ReportOfLabels(predictions)
                                : ReportOfClasses(predictions);
  report.rule = predictions.rule;
  return report;
}

Json ReportJson(const EvaluationReport& report, const std::vector<std::string>& names) {
  Check(names.size() == report.labels.size(), "report", "expected ", report.labels.size(),
        " names of labels but got ", names.size());
  Json json = {{"num_samples", report.num_samples},
               {"accuracy", OrNull(report.accuracy)},
               {"roc_auc", OrNull(report.roc_auc)},
               {"average_precision", OrNull(report.average_precision)},
               {"log_loss", OrNull(report.log_loss)},
               {"expected_calibration_error", OrNull(report.calibration.Error())},
               {"calibration_bins", BinsJson(report.calibration)},
               {"micro", ScoresJson(report.micro)},
               {"macro", ScoresJson(report.macro)},
               {"weighted", ScoresJson(report.weighted)},
               {"classes", Json::array()}};
  for (size_t c = 0; c < names.size(); ++c) {
    json["classes"].push_back(LabelJson(c, names[c], report));
    if (!report.rule.thresholds.empty())
      json["classes"].back()["threshold"] = report.rule.thresholds[c];
  }
  if (report.rule.temperature != 1) json["temperature"] = report.rule.temperature;
  if (report.kind == LabelKind::kSingleLabel) AddConfusion(report, names, json);
  return json;
}

}  // namespace lathe
