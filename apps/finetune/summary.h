// What `finetune` prints before its first step, and the tables of results.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "lathe/train/task/task.h"
#include "lathe/train/trainer.h"

namespace lathe {

// Prints what is about to run: model, labels, data, steps, device. `trainer` is null if nothing is
// trained.
void PrintSummary(std::ostream& out, const FinetuneArguments& options, const Task& task,
                  const Trainer* trainer, int num_processes, Device device);

// Prints the title and a line for each metric.
void PrintMetrics(std::ostream& out, const std::string& title, const nlohmann::json& metrics);

}  // namespace lathe
