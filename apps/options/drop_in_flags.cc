#include "lathe/apps/options/drop_in_flags.h"

#include <absl/strings/ascii.h>
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

// run_classification shuffles the rows once before it takes max_train_samples of them. The order of
// each epoch is random in any case, so a shuffle before it shows only in what is taken.
void CheckShuffle(const DropInInputs& inputs, const FinetuneArguments& o) {
  if (!inputs.shuffle_train_dataset) return;
  const char* other = o.max_train_samples ? "--max_train_samples, which takes the first rows"
                      : !o.shuffle_train  ? "epochs that keep the file's order"
                                          : nullptr;
  if (other == nullptr) return;
  throw InvalidArgument(
      std::string("--shuffle_train_dataset is not supported together with ") + other,
      "leave it out, or shuffle the file");
}

void CheckRemovedSplits(const Names& splits) {
  for (const std::string& split : splits) {
    if (split != "train" && split != "validation" && split != "test") continue;
    throw InvalidArgument("--remove_splits " + split +
                              " is not supported: each split is a file, which is there if it is "
                              "named",
                          "leave it out, and do not name the split's file");
  }
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
  if (o.task_name.empty()) return;
  const std::string given = std::exchange(o.task_name, absl::AsciiStrToLower(o.task_name));
  const GlueTask* task = FindGlueTask(o.task_name);
  if (task == nullptr) {
    Names tasks;
    for (const GlueTask& each : GlueTasks()) tasks.push_back(each.name);
    throw InvalidArgument(
        "--task_name must be one of " + absl::StrJoin(tasks, ", ") + " but is \"" + given + "\"",
        "leave it out for other data");
  }
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
  flags.Add(
      "task_name", &o.task_name,
      "GLUE task whose columns and labels the files have, and whose metrics evaluations have, "
      "too, such as mrpc; --train_file and so on are still needed");
  flags.Add("do_regression", &o.do_regression,
            "whether labels are scores (default: the training file decides)");
  flags.Add("metric_name", &o.metric_name, "a metric that evaluations must have; they have all");
  flags.Add("run_name", &o.run_name, "name of the training; no tracker uses it");
  flags.Add("use_cpu", &inputs.use_cpu, "short for --device cpu");
  flags
      .Add("train_sampling_strategy", &inputs.train_sampling_strategy,
           "short for --shuffle_train, --no_shuffle_train or --group_by_length")
      .Choices({"random", "sequential", "group_by_length"});
  flags.Add("shuffle_train_dataset", &inputs.shuffle_train_dataset,
            "changes nothing, since each epoch has a new order anyway");
  flags.Add("remove_splits", &inputs.remove_splits,
            "changes nothing, since only the splits whose files are named are read");
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
  CheckShuffle(inputs, o);
  CheckRemovedSplits(inputs.remove_splits);
  TranslateTask(o);
  TranslateRegression(o);
  if (!inputs.use_cpu) return;
  if (flags.given("device") && o.device != "cpu") throw Contradiction("use_cpu", "device");
  o.device = "cpu";
}

}  // namespace lathe
