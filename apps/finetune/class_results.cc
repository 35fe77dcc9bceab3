#include "lathe/apps/finetune/class_results.h"

#include "lathe/apps/results/results_table.h"
#include "lathe/core/base/error.h"
#include "lathe/train/evaluation_results.h"

namespace lathe {
namespace {

// Returns the table of the most confident errors, or prints why there is none and returns "".
std::string ErrorsOf(const Evaluation& evaluation, const Task& task, std::ostream& printed) {
  std::string reason = "another process has read the validation data";
  try {
    if (task.validation_rows) {
      return ErrorTable(evaluation, *task.validation.dataset, task.labels, *task.validation_rows);
    }
  } catch (const Error& e) {  // a file is gone, or another one by now
    reason = e.message();
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
