#include "lathe/train/support/training_arguments.h"

#include <cmath>

#include "lathe/core/base/error.h"
#include "lathe/train/support/schedule_kwargs.h"

namespace lathe {
namespace {

void Require(bool ok, const char* message) {
  if (!ok) throw InvalidArgument(message);
}

}  // namespace

void CompleteTrainingArguments(TrainingArguments& o) {
  Require(o.per_device_train_batch_size > 0, "per_device_train_batch_size must be above 0");
  Require(o.per_device_eval_batch_size > 0, "per_device_eval_batch_size must be above 0");
  Require(o.adam_beta1 < 1, "adam_beta1 must be below 1");
  Require(o.adam_beta2 < 1, "adam_beta2 must be below 1");
  Require(o.max_steps != 0, "max_steps must be above 0, or -1 for num_train_epochs");
  Require(o.max_steps > 0 || o.num_train_epochs > 0, "num_train_epochs must be above 0");
  Require(o.logging_steps > 0, "logging_steps must be above 0");
  Require(o.logging_steps < 1 || o.logging_steps == std::floor(o.logging_steps),
          "logging_steps must be a whole number or below 1");
  Require(o.eval_steps < 1 || o.eval_steps == std::floor(o.eval_steps),
          "eval_steps must be a whole number or below 1");
  if (o.eval_strategy != "no" && o.eval_strategy != "steps" && o.eval_strategy != "epoch") {
    throw InvalidArgument("eval_strategy must be one of no, steps, epoch but is \"" +
                          o.eval_strategy + "\"");
  }

  const bool plateau = o.lr_scheduler_type == "reduce_lr_on_plateau";
  if (o.do_train && (o.load_best_model_at_end || plateau)) {
    const char* wish =
        plateau ? "lr_scheduler_type reduce_lr_on_plateau" : "load_best_model_at_end";
    if (o.eval_strategy == "no") {
      throw InvalidArgument(std::string(wish) + " needs evaluations while training",
                            "set eval_strategy to steps or epoch");
    }
    if (o.metric_for_best_model.empty()) o.metric_for_best_model = "loss";
  }
  ParseScheduleKwargs(o.lr_scheduler_type, o.lr_scheduler_kwargs);
  if (o.eval_steps == 0) o.eval_steps = o.logging_steps;
}

}  // namespace lathe
