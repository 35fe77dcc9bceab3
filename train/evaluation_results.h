// What an evaluation's files say beyond the metrics: the report of classes and the most confident
// errors.
//
//   EvaluationResults results = ResultsOf(evaluation, *dataset, labels);
//   out.WriteJson("eval_report.json", results.json);
//   out.Write("eval_errors.tsv", ErrorTable(evaluation, *dataset, labels, source));
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/metrics/evaluation_report.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/rows/source_rows.h"

namespace lathe {

struct EvaluationResults {
  // problem_type, num_samples, loss, metrics (those of EvalMetrics without "eval_"), and for
  // classifiers all that ReportJson returns.
  nlohmann::json json;
  std::optional<EvaluationReport> classes;  // not for regressions
};

// `dataset` has labels, and `evaluation` is complete and finite. `task` is a GLUE task or "".
EvaluationResults ResultsOf(const Evaluation& evaluation, const TokenizedDataset& dataset,
                            const LabelSet& labels, const std::string& task = "");

inline constexpr int64_t kMostErrors = 100;

// Returns a table in TSV of the most confident errors of a classifier (confident_errors.h), the
// most confident first: "line\tlabel\tprediction\tprobability" and the texts. If the data are of
// several files, "file" stands before them, as the options or a pattern name it. If one of the rows
// lies in an array in JSON, "element" behind "line" has its number there. It is empty for rows of
// other files. Several labels are arrays in JSON. Throws as ReadSourceRows does, which reads the
// texts again.
std::string ErrorTable(const Evaluation& evaluation, const TokenizedDataset& dataset,
                       const LabelSet& labels, const RowSource& source,
                       int64_t most_errors = kMostErrors);

}  // namespace lathe
