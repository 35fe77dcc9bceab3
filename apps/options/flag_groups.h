// The flags of `finetune` that set its arguments, by groups of --help. Each function adds one group
// or more to a table.
#pragma once

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/options/drop_in_flags.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// These limits are beyond any use, so that no product of them overflows.
inline constexpr double kMostSamples = 1 << 20, kMostEpochs = 1e6, kMostSteps = 1e12;

// model_and_data_flags.cc
void AddModelFlags(FlagTable& flags, FinetuneArguments& o);
void AddDataFlags(FlagTable& flags, FinetuneArguments& o);
void AddTaskFlags(FlagTable& flags, FinetuneArguments& o);  // what to do

// training_flags.cc. What a value of `inputs` means depends on other flags.
void AddTrainingFlags(FlagTable& flags, FinetuneArguments& o, DropInInputs& inputs);

// loss_flags.cc
void AddLossFlags(FlagTable& flags, FinetuneArguments& o);
void AddTrainedFlags(FlagTable& flags, FinetuneArguments& o);  // which parameters, at which rates
// Throws if values of AddLossFlags contradict other arguments.
void ValidateLoss(const FinetuneArguments& o);

// logging_flags.cc
void AddLoggingFlags(FlagTable& flags, FinetuneArguments& o);
void AddEarlyStoppingFlags(FlagTable& flags, FinetuneArguments& o);
void AddTrackerFlags(FlagTable& flags, FinetuneArguments& o);

// checkpoint_flags.cc
void AddCheckpointFlags(FlagTable& flags, FinetuneArguments& o);

}  // namespace lathe
