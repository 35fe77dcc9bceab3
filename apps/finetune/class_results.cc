#include "lathe/apps/finetune/class_results.h"

#include "lathe/apps/results/results_table.h"
#include "lathe/core/base/error.h"
#include "lathe/train/evaluation_results.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/rows/read_table.h"

namespace lathe {
namespace {

// Returns the table of the most confident errors, or prints why there is none and returns "".
std::string ErrorsOf(const Evaluation& evaluation, const Task& task, std::ostream& printed) {
  const DataSplit split = ValidationSplit(task.options);
  std::string reason =
      "the texts are read again only if the validation data are all rows of one file";
  if (split.rows == DataSplit::Rows::kAll && !split.drops_duplicates && split.files.size() == 1) {
    try {
      return ErrorTable(evaluation, *task.validation.dataset, task.labels,
                        {.path = split.files[0],
                         .columns = task.text_columns,
                         .joined = task.joined_columns,
                         .invalid_utf8 = OnInvalidUtf8(task.options)});
    } catch (const Error& e) {  // the file is gone, or another one by now
      reason = e.message();
    }
  }
  printed << "note: eval_errors.tsv is not written: " << reason << std::endl;
  return "";
}

}  // namespace

ClassResults WriteClassResults(const Evaluation& evaluation, const Task& task, OutputDir& out,
                               std::ostream& printed) {
  const EvaluationResults results =
      ResultsOf(evaluation, *task.validation.dataset, task.labels, task.options.task_name);
  out.WriteJson("eval_report.json", results.json);
  PrintReport(printed, *results.classes, task.labels.names());
  const std::string errors = ErrorsOf(evaluation, task, printed);
  if (!errors.empty()) out.Write("eval_errors.tsv", errors);
  return {.report = results.json, .errors = errors};
}

}  // namespace lathe
