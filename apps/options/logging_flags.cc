#include "lathe/apps/options/flag_groups.h"
#include "lathe/apps/options/refused_values.h"

namespace lathe {

void AddLoggingFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Logging and evaluation while training");
  flags.Add("logging_steps", &o.logging_steps, "log every X steps; below 1: a share of all steps")
      .Min(0)
      .Max(kMostSteps);
  flags.Add("logging_strategy", &o.logging_strategy, "when to log")
      .Choices({"no", "steps", "epoch"});
  flags.Add("logging_first_step", &o.logging_first_step, "log the first step, too");
  flags.Add("eval_strategy", &o.eval_strategy, "when to evaluate")
      .Choices({"no", "steps", "epoch"});
  flags
      .Add("eval_steps", &o.eval_steps,
           "with --eval_strategy steps, evaluate every X steps; 0: as --logging_steps")
      .Min(0)
      .Max(kMostSteps);
  flags
      .Add("eval_delay", &o.eval_delay,
           "evaluate while training from step or epoch X on, by --eval_strategy")
      .Min(0)
      .Max(kMostSteps);
  flags.Add("metric_for_best_model", &o.metric_for_best_model,
            "metric that decides which model is best, with or without \"eval_\" (default: loss)");
  flags.Add("greater_is_better", &o.greater_is_better,
            "whether a higher metric is better (default: true unless it is a loss or an error)");
  flags.Add("load_best_model_at_end", &o.load_best_model_at_end,
            "save the best model instead of the last one");
  flags.Add("disable_tqdm", &o.disable_tqdm, "show no progress bar");
  flags.Add("loss_curve", &o.loss_curve,
            "on a terminal, draw a small curve of the losses below the progress bar");
  flags.Add("report", &o.report, "keep report.html, with curves of the training, in output_dir");
  flags
      .Add("log_level", &o.log_level,
           "with debug, report on standard error what the CUDA graphs do; the others are alike")
      .Choices({"debug", "info", "passive", "detail", "warning", "error", "critical"});
}

void AddEarlyStoppingFlags(FlagTable& flags, FinetuneArguments& o) {
  flags
      .Add("early_stopping_patience", &o.early_stopping_patience,
           "stop after N evaluations in a row without an improvement of --metric_for_best_model "
           "(default: train for all steps)")
      .Min(1);
  flags
      .Add("early_stopping_threshold", &o.early_stopping_threshold,
           "with --early_stopping_patience, only an improvement by more than this counts")
      .Min(0);
}

void AddTrackerFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Trackers");
  flags
      .Add("report_to", &o.report_to,
           "where to report numbers while training: tensorboard (event files), jsonl (a JSON "
           "object a line), all or none (default: none)")
      .CheckedBy([](const std::string& value) {
        CheckNotRefused("report_to", value, "tensorboard, jsonl, all or none");
      });
  flags
      .Add("logging_dir", &o.logging_dir,
           "folder that the trackers write to (default: runs/TIME_HOST in --output_dir)")
      .ValueName("DIR");
}

}  // namespace lathe
