#include "lathe/train/support/training_arguments.h"

#include <cmath>
#include <initializer_list>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/trackers/tracker_list.h"
#include "lathe/data/metrics/glue_tasks.h"
#include "lathe/train/support/class_weights.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/schedule_kwargs.h"

namespace lathe {
namespace {

void Require(bool ok, const char* message) {
  if (!ok) throw InvalidArgument(message);
}

void CheckSaving(TrainingArguments& o) {
  const auto check_name = [](const char* name, const std::string& value,
                             std::initializer_list<const char*> names) {
    std::string list;
    for (const char* each : names) {
      if (value == each) return;
      list += (list.empty() ? "" : ", ") + std::string(each);
    }
    throw InvalidArgument(std::string(name) + " must be one of " + list + " but is \"" + value +
                          "\"");
  };
  check_name("save_strategy", o.save_strategy, {"no", "steps", "epoch", "best"});
  check_name("save_failure", o.save_failure, {"continue", "stop"});
  Require(o.save_steps > 0, "save_steps must be above 0");
  Require(o.save_steps < 1 || o.save_steps == std::floor(o.save_steps),
          "save_steps must be a whole number or below 1");
  Require(o.save_seconds >= 0, "save_seconds must be at least 0");
  Require(!o.save_total_limit || *o.save_total_limit > 0, "save_total_limit must be above 0");
  std::string& resume = o.resume_from_checkpoint;
  if (resume == "True") resume = "true";
  if (resume == "false" || resume == "False") resume.clear();
  while (resume.size() > 1 && resume.ends_with('/')) resume.pop_back();
}

void CheckEarlyStopping(const TrainingArguments& o) {
  if (o.early_stopping_patience && *o.early_stopping_patience < 1) {
    throw InvalidArgument("early_stopping_patience must be at least 1 but is " +
                              std::to_string(*o.early_stopping_patience),
                          "leave it out to train for all steps");
  }
  Require(o.early_stopping_threshold >= 0, "early_stopping_threshold must be at least 0");
  if (o.early_stopping_threshold > 0 && !o.early_stopping_patience) {
    throw InvalidArgument("early_stopping_threshold needs early_stopping_patience",
                          "set early_stopping_patience to a number of evaluations");
  }
}

// Returns the argument that makes evaluations decide something; null if there is none.
const char* WishForEvaluations(const TrainingArguments& o) {
  if (o.lr_scheduler_type == "reduce_lr_on_plateau")
    return "lr_scheduler_type reduce_lr_on_plateau";
  if (o.save_strategy == "best") return "save_strategy best";
  if (o.load_best_model_at_end) return "load_best_model_at_end";
  return o.early_stopping_patience ? "early_stopping_patience" : nullptr;
}

void CheckRates(const TrainingArguments& o) {
  Require(o.head_learning_rate >= 0 && std::isfinite(o.head_learning_rate),
          "head_learning_rate must be at least 0");
  Require(o.layerwise_lr_decay > 0 && o.layerwise_lr_decay <= 1,
          "layerwise_lr_decay must be above 0 and at most 1");
}

void CheckLoss(const TrainingArguments& o) {
  Require(o.label_smoothing_factor >= 0 && o.label_smoothing_factor <= 1,
          "label_smoothing_factor must be from 0 to 1");
  Require(o.focal_gamma >= 0 && std::isfinite(o.focal_gamma), "focal_gamma must be at least 0");
  if (o.label_smoothing_factor > 0 && o.focal_gamma > 0) {
    throw InvalidArgument("label_smoothing_factor and focal_gamma exclude each other",
                          "leave one of them out");
  }
  ReadClassWeights(o.class_weights);  // throws if they can't be right for any labels
}

}  // namespace

std::string BestModelMetric(const TrainingArguments& o) {
  const std::string& name = o.metric_for_best_model;
  if (name.empty()) return "eval_loss";
  return name.starts_with("eval_") ? name : "eval_" + name;
}

bool GreaterIsBetter(const TrainingArguments& o) {
  const std::string metric = BestModelMetric(o);
  return o.greater_is_better.value_or(!metric.ends_with("loss") && !metric.ends_with("mse") &&
                                      !metric.ends_with("runtime"));
}

void CompleteTrainingArguments(TrainingArguments& o) {
  Require(o.per_device_train_batch_size > 0, "per_device_train_batch_size must be above 0");
  Require(o.per_device_eval_batch_size > 0, "per_device_eval_batch_size must be above 0");
  Require(o.adam_beta1 < 1, "adam_beta1 must be below 1");
  Require(o.adam_beta2 < 1, "adam_beta2 must be below 1");
  CheckOptimizer(o);
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

  if (o.logging_strategy != "no" && o.logging_strategy != "steps" &&
      o.logging_strategy != "epoch") {
    throw InvalidArgument("logging_strategy must be one of no, steps, epoch but is \"" +
                          o.logging_strategy + "\"");
  }
  Require(o.eval_delay >= 0, "eval_delay must be at least 0");

  if (!o.task_name.empty() && FindGlueTask(o.task_name) == nullptr) {
    std::string names;
    for (const GlueTask& task : GlueTasks()) names += (names.empty() ? "" : ", ") + task.name;
    throw InvalidArgument("task_name must be one of " + names + " but is \"" + o.task_name + "\"");
  }
  CheckLoss(o);
  CheckRates(o);
  CheckSaving(o);
  o.report_to = TrackerNames(o.report_to, "report_to");
  CheckEarlyStopping(o);
  if (const char* wish = WishForEvaluations(o); o.do_train && wish != nullptr) {
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
