// What `finetune` tells model cards and trackers of a run.
#pragma once

#include <nlohmann/json.hpp>

#include "lathe/apps/options/options.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/train/support/model_card.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Returns what a model card tells beside the results of the training. `options` are those that were
// given, with the names of models.
ModelCardFacts CardFactsOf(const FinetuneArguments& options, const Accelerator& accelerator);

// Returns the values of all options, and the model's configuration under "model_config".
nlohmann::json TrackedHyperparameters(const ParsedOptions& parsed, const Task& task);

}  // namespace lathe
