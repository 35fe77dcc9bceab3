// Reads optim and optim_args: the optimizer of a training and its own options, under the names of
// Transformers' Trainer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lathe/optim/optimizer.h"
#include "lathe/optim/optimizers/optimizers.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the values of optim: names of PyTorch's AdamW, and those of the other optimizers.
std::vector<std::string> OptimizerNames();

bool UsesAdamW(const TrainingArguments& arguments);
// Returns true if several processes divide the optimizer's update among them. Adafactor's can't be
// divided.
bool ShardsOptimizer(const TrainingArguments& arguments);

// Returns the options of torch.optim.SGD as Trainer sets them: learning_rate, weight_decay, and
// from optim_args momentum, dampening and nesterov. The last three are 0, 0 and false if not given.
// Throws for text that is no list of NAME=VALUE, for other names, and for values that SGD does not
// take.
SGDOptions SGDOptionsOf(const TrainingArguments& arguments);
// These do the same for torch.optim.RMSprop (momentum, alpha, eps, centered), torch.optim.Adagrad
// (lr_decay, eps) and Lion (beta1, beta2).
RMSpropOptions RMSpropOptionsOf(const TrainingArguments& arguments);
AdagradOptions AdagradOptionsOf(const TrainingArguments& arguments);
LionOptions LionOptionsOf(const TrainingArguments& arguments);

// Returns the options that optim_args can set, with their values in force.
NamedSettings OptimizerOptionsOf(const TrainingArguments& arguments);

// Returns the optimizer for `groups`. Adafactor is that of Transformers, as Trainer makes it.
std::unique_ptr<Optimizer> MakeOptimizer(const TrainingArguments& arguments,
                                         std::vector<ParameterGroup> groups);

// Throws for an unknown optim, and for optim_args that do not fit it.
void CheckOptimizer(const TrainingArguments& arguments);

// Returns the optimizer and its options, for people.
std::string DescribeOptimizer(const TrainingArguments& arguments);

}  // namespace lathe
