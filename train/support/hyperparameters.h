// The arguments that decide on a training's result, as people compare them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the hyperparameters that Transformers' Trainer lists on a model card: learning_rate,
// train_batch_size and so on. They are numbers and texts, under the same names and in the same
// order. With several processes, num_devices and the sizes of whole batches are among them.
// `on_gpu` says what the processes are. Behind them stand all other arguments that change the
// trained model and differ from their defaults, by their own names, such as label_smoothing_factor.
// Paths lose their folders.
nlohmann::ordered_json TrainerHyperparameters(const FinetuneArguments& arguments,
                                              int num_processes = 1, bool on_gpu = false);
// The same for a program that loads models and data itself.
nlohmann::ordered_json TrainerHyperparameters(const TrainingArguments& arguments,
                                              int num_processes = 1, bool on_gpu = false);

}  // namespace lathe
