// What `finetune` says about the classes after an evaluation.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "lathe/train/evaluation.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/task/task.h"

namespace lathe {

// What an evaluation says about classes. Both parts are empty for regressions.
struct ClassResults {
  nlohmann::json report = nlohmann::json::object();  // as in eval_report.json
  std::string errors;                                // as in eval_errors.tsv; "": there is none
};

// Writes eval_report.json, and eval_errors.tsv with the most confident errors. Prints the table of
// classes, and a note if the errors can't be written because their texts can't be read again. The
// evaluation is that of the task's validation data, which have classes.
ClassResults WriteClassResults(const Evaluation& evaluation, const Task& task, OutputDir& out,
                               std::ostream& printed);

}  // namespace lathe
