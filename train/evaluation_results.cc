#include "lathe/train/evaluation_results.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/text_table_reader.h"
#include "lathe/data/metrics/confident_errors.h"
#include "lathe/models/config/problem_type.h"

namespace lathe {
namespace {

// A row of a file: its line, and its texts.
struct FileRow {
  int64_t line = 0;
  std::vector<std::string> texts;
};

// Reads the rows with these indices. Keeps no others, and reads no further than it must.
std::map<int64_t, FileRow> ReadRows(const TextSourceFile& file, std::vector<int64_t> indices) {
  std::sort(indices.begin(), indices.end());
  std::map<int64_t, FileRow> rows;
  if (indices.empty()) return rows;
  TextTableReader reader(file.path, file.invalid_utf8);
  auto next = indices.begin();
  for (int64_t first = 0; next != indices.end();) {
    TextTable block = reader.Next();
    if (block.rows() == 0) {
      throw DataLoss(file.path + ": the file has only " + std::to_string(first) +
                     " rows now; it had more before");
    }
    JoinColumns(block, file.joined);
    for (; next != indices.end() && *next < first + block.rows(); ++next) {
      const auto place = static_cast<size_t>(*next - first);
      FileRow& row = rows[*next];
      row.line = block.lines[place];
      row.texts.push_back(block.column(file.columns.first)[place]);
      if (!file.columns.second.empty())
        row.texts.push_back(block.column(file.columns.second)[place]);
    }
    first += block.rows();
  }
  return rows;
}

// Returns the right labels of a sample, with commas between them.
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
                       const LabelSet& labels, const TextSourceFile& file, int64_t most_errors) {
  const Predictions predictions = PredictionsOf(evaluation, dataset);
  const std::vector<ConfidentError> errors = MostConfidentErrors(predictions, most_errors);
  std::vector<int64_t> samples;
  for (const ConfidentError& error : errors) samples.push_back(error.sample);
  const std::map<int64_t, FileRow> rows = ReadRows(file, samples);
  const std::vector<std::string> predicted = PredictedNames(predictions, labels);
  std::string table = "line\tlabel\tprediction\tprobability\t" + TableCell(file.columns.first);
  if (!file.columns.second.empty()) table += '\t' + TableCell(file.columns.second);
  table += '\n';
  for (const ConfidentError& error : errors) {
    const FileRow& row = rows.at(error.sample);
    table += std::to_string(row.line) + '\t' +
             TableCell(RightNames(predictions, labels, error.sample)) + '\t' +
             TableCell(predicted[static_cast<size_t>(error.sample)]) + '\t' +
             ProbabilityText(error.probability);
    for (const std::string& text : row.texts) table += '\t' + TableCell(text);
    table += '\n';
  }
  return table;
}

}  // namespace lathe
