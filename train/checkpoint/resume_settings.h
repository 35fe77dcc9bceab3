// What must be the same when a training goes on from a checkpoint. Then it gives the numbers of a
// training that was never interrupted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lathe/data/datasets/dataset.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/nn/module.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the data, the tokenizer, the model and those arguments that decide on the numbers, in
// this order, as names and values. `tokenizer` may be null. The batch that counts is that of all
// processes together, so `num_processes` may change if the size of each one's batch does.
NamedSettings SettingsThatMatter(const TrainingArguments& arguments, const TokenizedDataset& train,
                                 const Module& model, const Tokenizer* tokenizer, int num_processes,
                                 int64_t max_steps);

// Returns true if the output folder may hold files already. It is then to be overwritten, or the
// training goes on from one of its checkpoints. Or this job was started again and has filled it
// before.
bool MayUseFilledOutputDir(const TrainingArguments& arguments);

// Returns the first difference, for people: "learning_rate was 5e-05 and is 3e-05". Nullopt if
// there is none. Settings of the tokenizer are compared only if both sides have them.
std::optional<std::string> FirstDifference(const NamedSettings& then, const NamedSettings& now);

}  // namespace lathe
