// The tasks of GLUE (Wang et al. 2019), with the names that run_glue and the Hub's data set have.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

struct GlueTask {
  std::string name;                  // "mrpc", as --task_name has it
  std::vector<std::string> columns;  // of the texts: one, or a pair
  std::vector<std::string> labels;   // in the order of the classes' numbers; none: scores
};

// Returns all tasks, sorted by name.
std::span<const GlueTask> GlueTasks();

// Returns the task of this name, or null.
const GlueTask* FindGlueTask(std::string_view name);

}  // namespace lathe
