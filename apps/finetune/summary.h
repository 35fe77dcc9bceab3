// What `finetune` prints before its first step.
#pragma once

#include <ostream>

#include "lathe/train/task/task.h"
#include "lathe/train/trainer.h"

namespace lathe {

// Prints what is about to run: model, labels, data, steps, device. `trainer` is null if nothing is
// trained.
void PrintSummary(std::ostream& out, const FinetuneArguments& options, const Task& task,
                  const Trainer* trainer, int num_processes, Device device);

}  // namespace lathe
