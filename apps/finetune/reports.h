// What `finetune` tells trackers of a run.
#pragma once

#include <nlohmann/json.hpp>

#include "lathe/apps/cli/options.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Returns the values of all options, and the model's configuration under "model_config".
nlohmann::json TrackedHyperparameters(const ParsedOptions& parsed, const Task& task);

}  // namespace lathe
