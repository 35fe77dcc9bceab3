// Turns the arguments of a training run into the options of the objects that the Trainer makes.
// Checks that arguments, inputs and accelerator fit each other. Errors name arguments as flags.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/train/trainer.h"

namespace lathe {

// Returns the arguments of a program that trains, with the defaults that follow from others.
TrainingArguments CompletedArguments(TrainingArguments arguments);

// Returns the inputs. Throws if one that the arguments need is missing, or has no labels.
TrainerInputs CheckedInputs(TrainerInputs inputs, const TrainingArguments& arguments);

// Returns the inputs' model. Sets its loss options to those that the arguments ask for, and freezes
// the parameters that they name.
SequenceClassifier& PreparedModel(const TrainerInputs& inputs, const TrainingArguments& arguments,
                                  Device device);

// Throws unless the accelerator does what the arguments say.
void CheckAccelerator(const Accelerator& accelerator, const TrainingArguments& arguments);

DataLoaderOptions LoaderOptionsOf(const TrainingArguments& arguments, const TrainerInputs& inputs,
                                  int num_processes);
std::unique_ptr<Scheduler> MakeScheduler(const TrainingArguments& arguments, Optimizer& optimizer,
                                         int64_t max_steps);

}  // namespace lathe
