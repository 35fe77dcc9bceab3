// Reads optim and optim_args: the optimizer of a training and its own options, under the names of
// Transformers' Trainer.
#pragma once

#include <string>
#include <vector>

#include "lathe/optim/optimizer.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the values of optim: names of PyTorch's AdamW, and sgd.
std::vector<std::string> OptimizerNames();

bool UsesSGD(const TrainingArguments& arguments);

// Returns the options of torch.optim.SGD as Trainer sets them: learning_rate, weight_decay, and
// from optim_args momentum, dampening and nesterov. The last three are 0, 0 and false if not given.
// Throws for text that is no list of NAME=VALUE, for other names, and for values that SGD does not
// take.
SGDOptions SGDOptionsOf(const TrainingArguments& arguments);

// Throws for an unknown optim, and for optim_args that do not fit it.
void CheckOptimizer(const TrainingArguments& arguments);

// Returns the optimizer and its options, for people.
std::string DescribeOptimizer(const TrainingArguments& arguments);

}  // namespace lathe
