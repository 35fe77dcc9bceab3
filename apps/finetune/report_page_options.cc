#include "lathe/apps/finetune/report_page_options.h"

#include <string>

#include "lathe/apps/finetune/resume_command.h"
#include "lathe/core/version.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/train/support/progress.h"

namespace lathe {

ReportCallback::Options ReportPageOptions(const FinetuneArguments& options, const Task& task,
                                          const std::string& folder) {
  const TokenizedDataset& train = *task.train.dataset;
  const std::string name = options.model_name_or_path.empty() ? task.model->config().model_type()
                                                              : options.model_name_or_path;
  ReportCallback::Options report{
      .folder = folder, .title = name + " on " + task.train.path, .command = OwnCommand()};
  // The folder then holds this training's results, and is refused without the flag.
  if (!options.overwrite_output_dir) report.command += " --overwrite_output_dir";
  report.facts = {
      {"model", name + ", " + FormatCount(task.model->NumParameters()) + " parameters"},
      {"labels", ProblemType(task.labels.kind()) + ", " + std::to_string(task.labels.num_labels())},
      {"training data", task.train.path + ", " + FormatCount(train.size()) + " samples, " +
                            FormatCount(train.num_truncated) + " cut to " +
                            std::to_string(task.max_length) + " tokens"},
      {"batch size of a process", std::to_string(options.per_device_train_batch_size)},
      {"accumulated batches", std::to_string(options.gradient_accumulation_steps)},
      {"learning rate",
       FormatNumber("%g", options.learning_rate) + ", " + options.lr_scheduler_type},
      {"precision", options.mixed_precision == "no" ? "f32" : options.mixed_precision},
      {"seed", std::to_string(options.seed)},
      {"version of Lathe", std::string(kVersion)}};
  if (task.validation.dataset != nullptr)
    report.facts.insert(report.facts.begin() + 3, {"validation data", task.validation.path});
  for (const auto& [model, commit] : task.hub_commits)
    report.facts.insert(report.facts.begin() + 1, {"commit of " + model, commit});
  for (int64_t i = 0; i < train.size(); ++i) {
    const auto length = static_cast<size_t>(train.length(i));
    if (report.lengths.size() <= length) report.lengths.resize(length + 1);
    ++report.lengths[length];
  }
  return report;
}

}  // namespace lathe
