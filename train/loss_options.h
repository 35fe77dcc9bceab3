// The loss that the arguments of a training ask for.
#pragma once

#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/models/classification_loss.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the options for labels of this kind, named `labels` in the order of the model's outputs.
// class_weights "balanced" counts the labels of `train`, which may be null for any other value:
//
//   classes                   n / (classes * count), scikit-learn's compute_class_weight
//   several labels at once    negatives / positives, the usual pos_weight of PyTorch
//
// The weights lie on `device`. Throws for an option that this kind of labels doesn't have, and for
// weights of unknown or missing labels. Throws, too, if a label's balanced weight is 0 or infinite.
LossOptions LossOptionsOf(const TrainingArguments& arguments,
                          const std::vector<std::string>& labels, LabelKind kind,
                          const TokenizedDataset* train, Device device);

}  // namespace lathe
