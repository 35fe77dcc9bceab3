// What a training changes, and at which rates.
#pragma once

#include <string>
#include <vector>

#include "lathe/models/sequence_classifier.h"
#include "lathe/optim/optimizer.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Freezes the parameters that arguments.freeze_layers names: they require no gradient from now on.
// Throws if it names none, or all, or more layers than the model has.
void FreezeParameters(const SequenceClassifier& model, const TrainingArguments& arguments);

// Returns what the model does not train, for people: "23,837,184 of 109,483,778 parameters:
// the embeddings, layers 1 to 6; 85,646,594 are trained". Where only some parameters of a part are
// frozen, the text says "parts of".
std::string DescribeFrozen(const SequenceClassifier& model);

// Returns a line for each rate of the arguments that no parameter has, because those that would
// have it are frozen.
std::vector<std::string> IdleRates(const SequenceClassifier& model,
                                   const TrainingArguments& arguments);

// Returns the optimizer's groups. A parameter at depth d of a model with L layers (see
// models/parameter_places.h) has the rate
//
//   learning_rate * layerwise_lr_decay^(L + 1 - d)
//
// as in BEiT (Bao et al. 2021); parameters of the head have head_learning_rate if that is set. Each
// rate has two groups: one with weight_decay, and one without it for biases and norms. Groups at
// learning_rate come first. With freeze_layers, frozen parameters are in no group: the optimizer
// keeps no state of them.
std::vector<ParameterGroup> TrainedGroups(const SequenceClassifier& model,
                                          const TrainingArguments& arguments);

// Multiplies each group's rate by what its initial rate has become since `before`, the arguments of
// an earlier part of the training. Does nothing if the optimizer's groups were not the same then.
void ScaleRates(Optimizer& optimizer, const SequenceClassifier& model,
                const TrainingArguments& before);

}  // namespace lathe
