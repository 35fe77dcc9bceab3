// What `finetune` tells the model card of a run.
#pragma once

#include "lathe/distributed/accelerator.h"
#include "lathe/train/card/model_card.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns what a model card tells beside the results of the training. `options` are those that were
// given, with the names of models.
ModelCardFacts CardFactsOf(const FinetuneArguments& options, const Accelerator& accelerator);

}  // namespace lathe
