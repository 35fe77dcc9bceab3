#include "lathe/train/support/hyperparameters.h"

#include <string>

#include "lathe/train/support/optimizer_arguments.h"

namespace lathe {

nlohmann::ordered_json TrainerHyperparameters(const TrainingArguments& a, int num_processes,
                                              bool on_gpu) {
  const int64_t all = a.per_device_train_batch_size * num_processes * a.gradient_accumulation_steps;
  nlohmann::ordered_json list = {{"learning_rate", a.learning_rate},
                                 {"train_batch_size", a.per_device_train_batch_size},
                                 {"eval_batch_size", a.per_device_eval_batch_size},
                                 {"seed", a.seed}};
  if (num_processes > 1) {
    list["distributed_type"] = on_gpu ? "multi-GPU" : "multi-CPU";
    list["num_devices"] = num_processes;
  }
  if (a.gradient_accumulation_steps > 1)
    list["gradient_accumulation_steps"] = a.gradient_accumulation_steps;
  if (all != a.per_device_train_batch_size) list["total_train_batch_size"] = all;
  if (num_processes > 1)
    list["total_eval_batch_size"] = a.per_device_eval_batch_size * num_processes;
  list["optimizer"] = DescribeOptimizer(a);
  list["lr_scheduler_type"] = a.lr_scheduler_type;
  if (!a.lr_scheduler_kwargs.empty()) list["lr_scheduler_kwargs"] = a.lr_scheduler_kwargs;
  if (a.warmup_steps > 0) {
    list["lr_scheduler_warmup_steps"] = a.warmup_steps;
  } else if (a.warmup_ratio > 0) {
    list["lr_scheduler_warmup_ratio"] = a.warmup_ratio;
  }
  if (a.max_steps > 0) {
    list["training_steps"] = a.max_steps;
  } else {
    list["num_epochs"] = a.num_train_epochs;
  }
  const std::string precision = a.bf16 ? "bf16" : a.fp16 ? "fp16" : a.mixed_precision;
  if (precision != "no") list["mixed_precision_training"] = precision;
  return list;
}

}  // namespace lathe
