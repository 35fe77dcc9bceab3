// Options of run_glue, run_classification and TrainingArguments that stand for options of Lathe.
// transformers_options.h has those that change nothing here.
#pragma once

#include <string>
#include <vector>

#include "lathe/apps/cli/flags.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// What these options are set to. TranslateDropInFlags puts it into the arguments.
struct DropInInputs {
  double warmup_steps = 0;  // below 1: a share of all steps
  bool use_cpu = false, shuffle_train_dataset = false;
  std::string train_sampling_strategy;
  std::vector<std::string> remove_splits;
};

// Adds the options, in a group of their own, and other names of Lathe's options. All options that
// they stand for must be in `flags`.
void AddDropInFlags(FlagTable& flags, FinetuneArguments& arguments, DropInInputs& inputs);

// Sets what the given options stand for. Throws InvalidArgument if that contradicts another option.
void TranslateDropInFlags(const FlagTable& flags, const DropInInputs& inputs,
                          FinetuneArguments& arguments);

}  // namespace lathe
