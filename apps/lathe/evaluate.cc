#include "lathe/apps/lathe/evaluate.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "lathe/apps/cli/download_alarm.h"
#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/printer.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/inference_flags.h"
#include "lathe/apps/lathe/predictor.h"
#include "lathe/apps/results/results_table.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/hub/resolve_checkpoint.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/weights/load_weights.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/evaluation_results.h"
#include "lathe/train/rows/read_table.h"
#include "lathe/train/rows/text_columns.h"
#include "lathe/train/rows/trained_columns.h"
#include "lathe/train/support/progress.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/task/task.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Evaluates a model that finetune saved on files with labels. Prints the metrics and,\n"
    "for classifiers, a table of the classes.\n"
    "\n"
    "Usage:\n"
    "  lathe evaluate MODEL_DIR FILE... [options]\n"
    "\n"
    "MODEL_DIR may also be the name of a classifier on the Hub, as owner/name. FILE is\n"
    ".csv, .tsv, .json or .jsonl, with a column (or key) for each text and one for the\n"
    "label. It may be a pattern such as 'data/*.csv'; several files are as one.\n";

struct EvaluateCommand : InferenceOptions {
  std::string model, output, errors;
  std::vector<std::string> files;  // or patterns
  DataArguments data;              // the columns of texts
  std::string label_column = "label";
  OpenColumns open;  // what no option says about columns
  bool help = false;
  std::string help_text;
};

void AddFlags(FlagTable& flags, EvaluateCommand& o) {
  flags.Group("Options");
  flags.Add("text_columns", &o.data.text_columns,
            "one or two columns of text, by name or number (default: those of the training if the "
            "file has them; else sentence1,sentence2, or else the first one or two that are not "
            "the label)");
  flags.Add("text_column_names", &o.data.text_column_names,
            "in place of --text_columns: any number of columns, by name or number, that make one "
            "text together, in this order");
  flags
      .Add("text_column_delimiter", &o.data.text_column_delimiter,
           "what stands between the texts of --text_column_names")
      .ValueName("TEXT")
      .default_value = "a space";
  flags
      .Add("label_column", &o.label_column,
           "column of the labels, by name or number (default: that of the training if the file "
           "has it, else label)")
      .default_value = "";
  flags
      .Add("output", &o.output,
           "write the results to this file, as JSON in the form of finetune's eval_report.json")
      .ValueName("FILE");
  flags
      .Add(
          "errors", &o.errors,
          "write the most confident errors to this file, in the form of finetune's eval_errors.tsv")
      .ValueName("FILE");
  AddInferenceFlags(flags, &o);
  flags.Add("help", &o.help, "show this text");
}

EvaluateCommand ParseCommand(const std::vector<std::string>& args) {
  EvaluateCommand o;
  FlagTable flags(kUsage);
  AddFlags(flags, o);
  o.help_text = flags.Help();
  const std::vector<std::string> given = flags.Parse(args);
  if (o.help) return o;
  constexpr char kHint[] = "usage: lathe evaluate MODEL_DIR FILE... [options]";
  if (given.empty()) throw InvalidArgument("MODEL_DIR is missing", kHint);
  if (given.size() < 2) throw InvalidArgument("FILE is missing", kHint);
  CheckTextColumns(o.data);
  o.open = {.texts = o.data.text_columns.empty() && o.data.text_column_names.empty(),
            .delimiter = !flags.given("text_column_delimiter"),
            .label = !flags.given("label_column")};
  ReadPrecision(flags, &o);
  o.model = given[0];
  o.files = {given.begin() + 1, given.end()};
  return o;
}

// Throws if the file can't be made, before the work rather than after it.
void CheckOutput(const std::string& path, const char* flag) {
  if (path.empty()) return;
  if (std::filesystem::is_directory(path)) {
    throw InvalidArgument(path + ": is a folder but " + flag + " must be a file",
                          "name a file in it");
  }
  const auto parent = std::filesystem::path(path).parent_path();
  if (!parent.empty() && !std::filesystem::is_directory(parent))
    throw NotFound(path + ": there is no folder " + parent.string(), "make the folder first");
}

// Returns the length of the longest text that the model takes, or the one that is asked for.
int64_t MaxLength(const EvaluateCommand& o) {
  const auto model =
      AutoModelForSequenceClassification::WithoutValues(AutoConfig::FromPretrained(o.model));
  return o.max_seq_length > 0 ? std::min(o.max_seq_length, model->max_length())
                              : model->max_length();
}

FinetuneArguments ArgumentsOf(const EvaluateCommand& o) {
  FinetuneArguments arguments;
  arguments.model_name_or_path = o.model;
  arguments.validation_file = o.files;
  arguments.text_columns = o.data.text_columns;
  arguments.text_column_names = o.data.text_column_names;
  arguments.text_column_delimiter = o.data.text_column_delimiter;
  arguments.label_column = o.label_column;
  arguments.max_seq_length = MaxLength(o);
  arguments.invalid_utf8 = o.invalid_utf8;
  arguments.dataset_cache = "none";
  arguments.do_eval = true;
  arguments.per_device_eval_batch_size = o.batch_size;
  arguments.device = o.device;
  arguments.mixed_precision = o.mixed_precision;
  arguments.deterministic = o.deterministic;
  arguments.num_threads = o.num_threads;
  return arguments;
}

Evaluation EvaluateTask(const Task& task, const EvaluateCommand& o, Accelerator& accelerator) {
  std::optional<Progress> progress;
  const auto show = [&](int64_t num_batches) {
    progress.emplace(Progress::Options{.title = "evaluate",
                                       .total = num_batches,
                                       .unit = "batch",
                                       .enabled = accelerator.is_main_process()});
  };
  Evaluation evaluation =
      Evaluate(accelerator, *task.model, task.validation.dataset,
               {.per_device_batch_size = o.batch_size, .on_begin = show, .on_batch = [&] {
                  progress->Update(1);
                }});
  const std::string problem = FirstNotFinite(evaluation, task.labels.num_labels(), "evaluation");
  if (!problem.empty()) {
    throw InvalidArgument(
        o.model + ": " + problem,
        "the model's weights are damaged; train it again, at a lower learning rate");
  }
  return evaluation;
}

void WriteResults(const EvaluationResults& results, const Evaluation& evaluation, const Task& task,
                  const EvaluateCommand& o) {
  if (!o.output.empty()) {
    WriteFileAtomically(o.output, DumpJson(results.json, 4) + "\n");
  }
  if (o.errors.empty()) return;
  Check(task.validation_rows.has_value(), "evaluate", "another process has read ", o.files[0]);
  WriteFileAtomically(o.errors, ErrorTable(evaluation, *task.validation.dataset, task.labels,
                                           *task.validation_rows));
}

void EvaluateModel(const EvaluateCommand& o) {
  for (const std::string& file : o.files) CheckNoFolder(file, "FILE");
  CheckOutput(o.output, "--output");
  CheckOutput(o.errors, "--errors");
  if (o.num_threads > 0) omp_set_num_threads(static_cast<int>(o.num_threads));
  const FinetuneArguments arguments = ArgumentsOf(o);
  Accelerator accelerator(AcceleratorOptionsOf(arguments));
  Task task = LoadTask(arguments, accelerator, o.open);
  CheckTrained(*task.model, o.model);
  if (!o.errors.empty() && task.labels.kind() == LabelKind::kRegression) {
    throw UsageError("--errors is for classifiers, and " + o.model + " predicts scores",
                     "leave --errors out");
  }
  PrintColumnNotes(task, accelerator);
  accelerator.Prepare(*task.model);
  const Evaluation evaluation = EvaluateTask(task, o, accelerator);
  if (!accelerator.is_main_process()) return;
  PrintMetrics(std::cout, "eval", EvalMetrics(evaluation, *task.validation.dataset));
  const EvaluationResults results = ResultsOf(evaluation, *task.validation.dataset, task.labels);
  if (results.classes) PrintReport(std::cout, *results.classes, task.labels.names());
  WriteResults(results, evaluation, task, o);
}

// The loader's errors name the flags of finetune.
Error WithoutFinetune(const Error& e) {
  constexpr std::string_view kFlag = "--validation_file";
  const auto translated = [&](std::string text) {
    for (size_t at = 0; (at = text.find(kFlag, at)) != std::string::npos;)
      text.replace(at, kFlag.size(), "FILE");
    return text;
  };
  const bool mixed = e.detail<MismatchedSize>() != nullptr;
  return Error(e.code(), translated(e.message()), mixed ? kMixedFilesHint : translated(e.hint()),
               e.location());
}

}  // namespace

int RunEvaluate(const std::vector<std::string>& args) {
  EvaluateCommand command;
  if (const auto code = ParseOrEnd(&command, ParseCommand, args)) return *code;
  {
    const DownloadAlarm alarm;
    command.model =
        ResolveCheckpoint(command.model,
                          {.config = true, .tokenizer = true, .columns = true, .weights = true},
                          command.hub)
            .folder;
  }
  try {
    EvaluateModel(command);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& e) {
    throw WithoutFinetune(e);
  }
  return 0;
}

}  // namespace lathe
