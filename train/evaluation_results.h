// What an evaluation's files say beyond the metrics: the report of classes and the most confident
// errors.
//
//   EvaluationResults results = ResultsOf(evaluation, *dataset, labels);
//   out.WriteJson("eval_report.json", results.json);
//   out.Write("eval_errors.tsv", ErrorTable(evaluation, *dataset, labels, {.path = "dev.csv",
//   ...}));
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/data/metrics/evaluation_report.h"
#include "lathe/train/evaluation.h"

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

// The file that a dataset was made of, and the columns of its texts.
struct TextSourceFile {
  std::string path;
  TextColumns columns;
  JoinedColumns joined = {};  // make columns.first, if there are several
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kError;
};

inline constexpr int64_t kMostErrors = 100;

// Returns a table in TSV of the most confident errors of a classifier (confident_errors.h), the
// most confident first: "line\tlabel\tprediction\tprobability" and the texts. The texts are read
// from the file again, since nothing keeps them after tokenizing. Throws as TextTableReader does,
// and DataLoss if the file has fewer rows than before.
std::string ErrorTable(const Evaluation& evaluation, const TokenizedDataset& dataset,
                       const LabelSet& labels, const TextSourceFile& file,
                       int64_t most_errors = kMostErrors);

}  // namespace lathe
