#include "lathe/apps/options/drop_in_flags.h"

#include <absl/strings/str_join.h>

#include <cmath>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/metrics/glue_tasks.h"

namespace lathe {
namespace {

using Names = std::vector<std::string>;

Error Contradiction(const std::string& a, const std::string& b) {
  return InvalidArgument("--" + a + " and --" + b + " contradict each other",
                         "leave one of them out");
}

void TranslateWarmup(const FlagTable& flags, const DropInInputs& inputs, FinetuneArguments& o) {
  const double steps = inputs.warmup_steps;
  if (steps >= 1 && steps != std::floor(steps)) {
    throw InvalidArgument(
        "--warmup_steps must be a whole number, or below 1 for a share of all "
        "steps");
  }
  o.warmup_steps = steps < 1 ? 0 : static_cast<int64_t>(steps);
  if (steps <= 0 || steps >= 1) return;
  if (flags.given("warmup_ratio") && o.warmup_ratio != steps)
    throw Contradiction("warmup_steps", "warmup_ratio");
  o.warmup_ratio = steps;
}

void TranslateSampling(const FlagTable& flags, const std::string& strategy, FinetuneArguments& o) {
  if (strategy.empty()) return;
  const bool groups = strategy == "group_by_length", shuffles = strategy != "sequential";
  if (flags.given("group_by_length") && o.group_by_length != groups)
    throw Contradiction("train_sampling_strategy", "group_by_length");
  if (flags.given("shuffle_train") && o.shuffle_train != shuffles)
    throw Contradiction("train_sampling_strategy", "shuffle_train");
  o.group_by_length = groups;
  o.shuffle_train = shuffles;
}

// The scripts fetch a task's data if they are not given its files.
void CheckTaskFiles(const GlueTask& task, const FinetuneArguments& o) {
  const auto check = [&](bool wanted, const char* flag, const std::vector<std::string>& files) {
    if (!wanted || !files.empty()) return;
    throw InvalidArgument(
        "--task_name " + task.name + " needs " + flag + ": finetune fetches no data set",
        "pass a file with the columns " + absl::StrJoin(task.columns, ", ") +
            (o.label_column.empty() ? "" : ", " + o.label_column));
  };
  check(o.do_train, "--train_file", o.train_file);
  check(o.do_eval && o.validation_split == 0, "--validation_file", o.validation_file);
  check(o.do_predict, "--test_file", o.test_file);
}

void TranslateTask(FinetuneArguments& o) {
  const GlueTask* task = FindGlueTask(o.task_name);
  if (task == nullptr) return;  // the flag takes no other names
  CheckTaskFiles(*task, o);
  if (o.text_columns.empty() && o.text_column_names.empty()) o.text_columns = task->columns;
  const bool has_scores = task->labels.empty();
  if (o.do_regression.value_or(has_scores) != has_scores)
    throw Contradiction("task_name", "do_regression");
  o.do_regression = has_scores;
}

void TranslateRegression(FinetuneArguments& o) {
  if (!o.do_regression || o.problem_type.empty()) return;
  if (*o.do_regression != (o.problem_type == "regression"))
    throw Contradiction("do_regression", "problem_type");
}

}  // namespace

void AddDropInFlags(FlagTable& flags, FinetuneArguments& o, DropInInputs& inputs) {
  flags.Group("Other names, as Transformers' scripts have them");
  Names tasks;
  for (const GlueTask& task : GlueTasks()) tasks.push_back(task.name);
  flags
      .Add("task_name", &o.task_name,
           "GLUE task whose columns and labels the files have, and whose metrics evaluations have, "
           "too; --train_file and so on are still needed")
      .Choices(tasks);
  flags.Add("do_regression", &o.do_regression,
            "whether labels are scores (default: the training file decides)");
  flags.Add("metric_name", &o.metric_name, "a metric that evaluations must have; they have all");
  flags.Add("run_name", &o.run_name, "name of the training; no tracker uses it");
  flags.Add("use_cpu", &inputs.use_cpu, "short for --device cpu");
  flags
      .Add("train_sampling_strategy", &inputs.train_sampling_strategy,
           "short for --shuffle_train, --no_shuffle_train or --group_by_length")
      .Choices({"random", "sequential", "group_by_length"});
  const std::pair<const char*, const char*> aliases[] = {
      {"activation_checkpointing", "gradient_checkpointing"},
      {"evaluation_strategy", "eval_strategy"},
      {"full_determinism", "deterministic"},
      {"label_column_name", "label_column"},
      {"no_cuda", "use_cpu"},
      {"per_gpu_eval_batch_size", "per_device_eval_batch_size"},
      {"per_gpu_train_batch_size", "per_device_train_batch_size"},
      {"text_column_name", "text_column_names"}};
  for (const auto& [name, of] : aliases) flags.AddAlias(name, of);
}

void TranslateDropInFlags(const FlagTable& flags, const DropInInputs& inputs,
                          FinetuneArguments& o) {
  TranslateWarmup(flags, inputs, o);
  TranslateSampling(flags, inputs.train_sampling_strategy, o);
  TranslateTask(o);
  TranslateRegression(o);
  if (!inputs.use_cpu) return;
  if (flags.given("device") && o.device != "cpu") throw Contradiction("use_cpu", "device");
  o.device = "cpu";
}

}  // namespace lathe
