#include "lathe/train/evaluation_results.h"

#include <algorithm>
#include <map>

#include "lathe/data/metrics/confident_errors.h"
#include "lathe/models/config/problem_type.h"

namespace lathe {
namespace {

// Returns the right label of a sample, or an array in JSON of its labels.
std::string RightNames(const Predictions& p, const LabelSet& labels, int64_t sample) {
  if (p.kind == LabelKind::kSingleLabel)
    return labels.names()[static_cast<size_t>(p.classes[static_cast<size_t>(sample)])];
  std::vector<uint8_t> flags;
  for (int64_t c = 0; c < p.num_labels; ++c)
    flags.push_back(p.scores[static_cast<size_t>(sample * p.num_labels + c)] > 0.5f);
  return NamesOf(flags, labels);
}

}  // namespace

EvaluationResults ResultsOf(const Evaluation& evaluation, const TokenizedDataset& dataset,
                            const LabelSet& labels, const std::string& task) {
  const Predictions predictions = PredictionsOf(evaluation, dataset);
  EvaluationResults results;
  if (dataset.kind != LabelKind::kRegression) {
    results.classes = MakeEvaluationReport(predictions);
    results.json = ReportJson(*results.classes, labels.names());
  }
  results.json["problem_type"] = ProblemType(dataset.kind);
  results.json["num_samples"] = dataset.size();
  results.json["loss"] = evaluation.loss;
  results.json["metrics"] = AllMetrics(predictions, task);
  return results;
}

std::string ErrorTable(const Evaluation& evaluation, const TokenizedDataset& dataset,
                       const LabelSet& labels, const RowSource& source, int64_t most_errors) {
  const Predictions predictions = PredictionsOf(evaluation, dataset);
  const std::vector<ConfidentError> errors = MostConfidentErrors(predictions, most_errors);
  std::vector<int64_t> samples;
  for (const ConfidentError& error : errors) samples.push_back(error.sample);
  const std::map<int64_t, SourceRow> rows = ReadSourceRows(source, samples);
  const std::vector<std::string> predicted = PredictedNames(predictions, labels);
  const TextColumns& columns = source.columns;
  const bool names_file = source.split.files.size() > 1;
  const bool has_elements =
      std::ranges::any_of(rows, [](const auto& row) { return row.second.element > 0; });
  std::string table = names_file ? "file\t" : "";
  table += has_elements ? "line\telement\t" : "line\t";
  table += "label\tprediction\tprobability\t" + TableCell(columns.first);
  if (!columns.second.empty()) table += '\t' + TableCell(columns.second);
  table += '\n';
  for (const ConfidentError& error : errors) {
    const SourceRow& row = rows.at(error.sample);
    if (names_file) table += TableCell(source.split.files[row.file]) + '\t';
    table += std::to_string(row.line) + '\t';
    if (has_elements) table += (row.element > 0 ? std::to_string(row.element) : "") + '\t';
    table += TableCell(RightNames(predictions, labels, error.sample)) + '\t' +
             TableCell(predicted[static_cast<size_t>(error.sample)]) + '\t' +
             ProbabilityText(error.probability);
    for (const std::string& text : row.texts) table += '\t' + TableCell(text);
    table += '\n';
  }
  return table;
}

}  // namespace lathe
