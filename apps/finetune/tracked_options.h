// What `finetune` tells trackers of a run's options.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lathe/apps/options/options.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Returns the values of all options, and the model's configuration under "model_config".
nlohmann::json TrackedHyperparameters(const ParsedOptions& parsed, const Task& task);

}  // namespace lathe
