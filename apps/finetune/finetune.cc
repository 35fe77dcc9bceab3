// The `finetune` program: trains, evaluates and predicts as run_glue does.
#include <omp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "lathe/apps/cli/options.h"
#include "lathe/apps/cli/printer.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/cli/short_waits.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/base/log.h"
#include "lathe/core/device_backend.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/job/dataset_digests.h"
#include "lathe/distributed/job/job.h"
#include "lathe/distributed/job/lower_rank_reports.h"
#include "lathe/distributed/liveness/ended_ranks.h"
#include "lathe/distributed/liveness/rank_loss.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/models/problem_type.h"
#include "lathe/train/callbacks/progress_callback.h"
#include "lathe/train/callbacks/state_callback.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/progress.h"
#include "lathe/train/task/task.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

void PrintRow(std::ostream& out, const std::string& name, const std::string& value,
              size_t width = 12) {
  out << "  " << name << std::string(name.size() < width ? width - name.size() : 1, ' ') << value
      << '\n';
}

void PrintData(std::ostream& out, const std::string& name, const TaskData& data,
               int64_t max_length) {
  if (data.dataset == nullptr) return;
  const TokenizedDataset& dataset = *data.dataset;
  const double mean = dataset.size() > 0 ? static_cast<double>(dataset.input_ids.size()) /
                                               static_cast<double>(dataset.size())
                                         : 0;
  PrintRow(out, name,
           FormatCount(dataset.size()) + " samples, " + FormatNumber("%.1f", mean) +
               " tokens on average, " + FormatCount(dataset.num_truncated) + " cut to " +
               std::to_string(max_length) + " (" + data.path + ")");
}

void PrintSummary(std::ostream& out, const FinetuneArguments& options, const Task& task,
                  const Trainer* trainer, int num_processes, Device device) {
  std::string labels = ProblemType(task.labels.kind());
  if (task.labels.kind() != LabelKind::kRegression) {
    labels += ", " + std::to_string(task.labels.num_labels()) + ":";
    for (size_t i = 0; i < task.label_names.size() && i < 10; ++i)
      labels += " " + task.label_names[i];
    if (task.label_names.size() > 10) labels += " ...";
  }
  PrintRow(out, "model",
           task.model->config().model_type() + ", " + FormatCount(task.model->NumParameters()) +
               " parameters");
  PrintRow(out, "labels", labels);
  const TextColumns& columns = task.text_columns;
  PrintRow(out, "texts", columns.first + (columns.second.empty() ? "" : " and " + columns.second));
  PrintData(out, "train", task.train, task.max_length);
  PrintData(out, "validation", task.validation, task.max_length);
  PrintData(out, "test", task.test, task.max_length);
  if (trainer != nullptr) PrintRow(out, "steps", trainer->Plan());
  if (!device.is_cpu()) {
    PrintRow(out, "device",
             BackendOf(device).Describe(device.index) +
                 (num_processes > 1 ? ", one for each process" : ""));
    if (GetGemmOptions().deterministic) PrintRow(out, "products", "deterministic");
  }
  PrintRow(out, "threads",
           std::to_string(omp_get_max_threads()) + (num_processes > 1 ? " each" : ""));
  if (num_processes > 1) PrintRow(out, "processes", std::to_string(num_processes));
  if (options.mixed_precision != "no") PrintRow(out, "precision", options.mixed_precision);
  PrintRow(out, "output", options.output_dir);
  for (const std::string& note : task.notes) PrintRow(out, "note", note);
  out << std::flush;
}

void PrintMetrics(std::ostream& out, const std::string& title, const nlohmann::json& metrics) {
  out << title << '\n';
  for (const auto& [name, value] : metrics.items()) {
    PrintRow(out, name,
             value.is_number_float() ? FormatNumber("%.4f", value.get<double>()) : value.dump(),
             28);
  }
  out << std::flush;
}

// Throws if a number in the evaluation is not finite. A trained model first goes back to its last
// good state; a model that was only read is refused.
void CheckFinite(const Evaluation& evaluation, const std::string& data,
                 const FinetuneArguments& options, const Task& task, Trainer* trainer) {
  if (trainer != nullptr) return trainer->CheckFinite(evaluation, data);
  const std::string problem = FirstNotFinite(evaluation, task.labels.num_labels(), data);
  if (problem.empty()) return;
  throw InvalidArgument(options.model_name_or_path + ": " + problem,
                        "its weights cannot be computed with; train the model anew, at a lower "
                        "learning rate");
}

// Throws if the folder holds another model: results that lie beside a model are taken for its own.
void CheckNoOtherModel(const OutputDir& out, const FinetuneArguments& options) {
  std::error_code code;
  if (options.do_train || options.overwrite_output_dir ||
      !std::filesystem::exists(out.File("config.json"), code) ||
      std::filesystem::equivalent(out.path(), options.model_name_or_path, code)) {
    return;
  }
  throw InvalidArgument(out.path() + ": --output_dir holds another model than the one to evaluate",
                        "choose another folder or pass --overwrite_output_dir");
}

// Returns the results of earlier runs, which stay as with Trainer. After training there are none,
// because the model is a new one.
nlohmann::json EarlierResults(const OutputDir& out, const FinetuneArguments& options) {
  if (options.do_train) return nlohmann::json::object();
  try {
    const auto json = nlohmann::json::parse(ReadFile(out.File("all_results.json")), nullptr, false);
    if (json.is_object()) return json;
  } catch (const Error&) {
    // There are no earlier results.
  }
  return nlohmann::json::object();
}

// Returns the exit code of a job that a signal ended. The signal may have come to some ranks only,
// say to those of one machine. All ranks end with the signal of the lowest rank that got one. The
// main process may take long to save before it comes here.
int EndInterrupted(Accelerator& accelerator) {
  ProcessGroup& group = accelerator.group();
  const auto key = [](int rank) { return "interrupted/" + std::to_string(rank); };
  int agreed = 0;
  try {
    group.PostMessage(key(group.rank()), std::to_string(InterruptSignal()));
    for (int rank = 0; rank < group.size(); ++rank) {
      const int signal_number = std::stoi(group.AwaitMessage(key(rank), rank));
      if (agreed == 0) agreed = signal_number;
    }
  } catch (const Error&) {
    agreed = InterruptSignal();  // another rank has ended already
  }
  return InterruptedExitCode(agreed);
}

// Ends a run whose evaluation after all steps was interrupted. The trained model is saved already.
int EndEvaluation(bool trained, const FinetuneArguments& options, Accelerator& accelerator,
                  Printer& printer) {
  if (trained)
    printer.out() << "interrupted; the trained model is in " << options.output_dir << std::endl;
  return EndInterrupted(accelerator);
}

// Evaluates after all steps. If a rank is lost, the error says where the trained model is.
Evaluation EvaluateAtEnd(const TaskData& data, const std::string& title, bool trained,
                         const FinetuneArguments& options, Accelerator& accelerator, Task& task) {
  try {
    std::optional<Progress> progress;
    const auto show = [&](int64_t num_batches) {
      progress.emplace(
          Progress::Options{.title = title,
                            .total = num_batches,
                            .unit = "batch",
                            .enabled = !options.disable_tqdm && accelerator.is_main_process()});
    };
    return Evaluate(accelerator, *task.model, data.dataset,
                    {.per_device_batch_size = options.per_device_eval_batch_size,
                     .on_begin = show,
                     .on_batch = [&] { progress->Update(1); }});
  } catch (const Error& e) {
    if (!trained || FindRankLoss(e) == nullptr) throw;
    throw AddToHint(e, "; the trained model is in " + options.output_dir);
  }
}

// Adds each value of the file under its keys: "config.json id2label.1".
void AddConfig(const nlohmann::json& config, NamedValues& values) {
  const nlohmann::json flat = config.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string keys = pointer.substr(std::min<size_t>(1, pointer.size()));
    std::replace(keys.begin(), keys.end(), '/', '.');
    std::replace(keys.begin(), keys.end(), '\t', ' ');
    values.emplace_back("config.json " + keys,
                        value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

// Throws if ranks of one machine name different files, because the machine's first process reads
// the files for all.
void CheckSameFiles(const NamedValues& files, Accelerator& accelerator) {
  const nlohmann::json mine = {{"main", accelerator.local_main_process_index()},
                               {"files", std::map(files.begin(), files.end())}};
  const std::vector<std::string> all =
      accelerator.GatherObject(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto theirs = nlohmann::json::parse(all[rank]);
    const auto main = theirs.at("main").get<size_t>();
    const nlohmann::json expected = nlohmann::json::parse(all[main]).at("files");
    const nlohmann::json& given = theirs.at("files");
    if (given == expected) continue;
    const auto changed = [](const nlohmann::json& from, const nlohmann::json& to) {
      return std::find_if(from.items().begin(), from.items().end(), [&](const auto& file) {
        return nlohmann::json(to.value(file.key(), "")) != file.value();
      });
    };
    auto first = changed(given, expected);
    if (first == given.items().end()) first = changed(expected, given);
    const std::string option = first.key();
    const auto text = [&](const nlohmann::json& of) {
      return of.contains(option) ? option + " " + of.at(option).get<std::string>() : "no " + option;
    };
    throw Error(absl::StatusCode::kFailedPrecondition,
                "[preflight] rank " + std::to_string(rank) + " has " + text(given) + " but rank " +
                    std::to_string(main) + " of the same machine has " + text(expected),
                "run the same program with the same files on all ranks of a machine");
  }
}

// Compares all ranks before anything is computed. Only the training data and the model's layout are
// left out: they are compared when they are prepared.
void CheckSameEverywhere(const ParsedOptions& parsed, const Task& task, Accelerator& accelerator) {
  if (!accelerator.use_distributed()) return;
  CheckSameFiles(parsed.files, accelerator);
  NamedValues values = parsed.shared;
  AddConfig(task.model->config().json(), values);
  const std::vector<std::string>& labels = task.labels.names();
  values.emplace_back("number of labels", std::to_string(labels.size()));
  for (size_t i = 0; i < labels.size(); ++i) {
    values.emplace_back("label " + std::to_string(i), labels[i]);
  }
  for (const auto& [name, digest] : task.tokenizer_digests) {
    values.emplace_back("digest of the tokenizer's " + name, std::to_string(digest));
  }
  for (const auto& [name, data] :
       {std::pair("validation", &task.validation), std::pair("test", &task.test)}) {
    if (data->dataset == nullptr) continue;
    const NamedValues digests = DatasetDigests(*data->dataset, name);
    values.insert(values.end(), digests.begin(), digests.end());
  }
  accelerator.CheckSame(values);
}

int WithErrorsReportedOnce(const std::function<int()>& body);

void SetRankPrefix() {
  if (const int rank = ReadProcessEnvironment().rank; rank > 0) {
    SetErrorPrefix("rank " + std::to_string(rank) + ": ");
  }
}

// While one exists, this process ends as soon as another rank is lost, whatever it waits for.
class LostRankAlarm {
 public:
  explicit LostRankAlarm(ProcessGroup& group) : group_(group) {
    group_.SetAlarm([](const Error& lost) {
      _exit(ReportErrors(kErrorExitCode,
                         [&] { return WithErrorsReportedOnce([&]() -> int { throw lost; }); }));
    });
  }
  ~LostRankAlarm() { group_.SetAlarm(nullptr); }
  LostRankAlarm(const LostRankAlarm&) = delete;
  LostRankAlarm& operator=(const LostRankAlarm&) = delete;

 private:
  ProcessGroup& group_;
};

constexpr char kNothingDone[] = "interrupted before the first step; nothing was written";

int Finetune(const ParsedOptions& parsed) {
  const FinetuneArguments& options = parsed.options;
  // If the reader of the progress ends, the model is saved all the same. The failed output is
  // reported at the end.
  signal(SIGPIPE, SIG_IGN);
  SetRankPrefix();
  ShowDebugLog(options.log_level == "debug");
  Accelerator accelerator = [&] {
    // Other ranks may never join. No rank knows the others yet, so one on each machine prints.
    const InterruptAlarm alarm([](int signal_number) {
      if (ReadProcessEnvironment().local_rank == 0) std::cout << kNothingDone << std::endl;
      _exit(InterruptedExitCode(signal_number));
    });
    return Accelerator(AcceleratorOptionsOf(options));
  }();
  const bool is_main = accelerator.is_main_process();
  Printer printer(is_main);
  std::optional<OutputDir> out;
  if (is_main) {
    out.emplace(options.output_dir, !options.do_train || options.overwrite_output_dir);
    CheckNoOtherModel(*out, options);
  }
  if (options.num_threads > 0) omp_set_num_threads(static_cast<int>(options.num_threads));
  accelerator.SetPhase("reading data");
  Task task = [&] {
    // Reading files may take any time, so a lost rank and a signal must be able to end it.
    const LostRankAlarm lost_rank_alarm(accelerator.group());
    const InterruptAlarm interrupt_alarm([&](int signal_number) {
      out.reset();
      printer.out() << kNothingDone << std::endl;
      _exit(InterruptedExitCode(signal_number));
    });
    return LoadTask(options, accelerator);
  }();
  CheckSameEverywhere(parsed, task, accelerator);
  accelerator.Prepare(*task.model);
  std::optional<Trainer> trainer;
  if (options.do_train) {
    trainer.emplace(options, accelerator,
                    TrainerInputs{.model = task.model,
                                  .train = task.train.dataset,
                                  .evaluation = task.validation.dataset,
                                  .train_name = task.train.path,
                                  .tokenizer = task.tokenizer,
                                  .load_tokenizer = [&options] { return LoadTokenizer(options); },
                                  .out = out ? &*out : nullptr},
                    std::vector<std::shared_ptr<Callback>>{std::make_shared<ProgressCallback>(),
                                                           std::make_shared<StateCallback>()});
  }
  PrintSummary(printer.out(), options, task, trainer ? &*trainer : nullptr,
               accelerator.num_processes(), accelerator.device());
  if (Interrupted()) accelerator.SetTrigger();
  if (accelerator.CheckTrigger()) {
    printer.out() << kNothingDone << std::endl;
    return EndInterrupted(accelerator);
  }

  nlohmann::json results = out ? EarlierResults(*out, options) : nlohmann::json::object();
  if (trainer) {
    trainer->Train();
    results.update(trainer->metrics());
    PrintMetrics(printer.out(), "train", trainer->metrics());
    if (trainer->interrupted()) {
      const int64_t best =
          options.load_best_model_at_end ? trainer->state().best_global_step.value_or(0) : 0;
      printer.out() << "interrupted after step " << trainer->state().global_step << "; the "
                    << (best > 0 ? "best model, of step " + std::to_string(best) + "," : "model")
                    << " is in " << options.output_dir << std::endl;
      return EndInterrupted(accelerator);
    }
  }
  if (options.do_eval) {
    accelerator.SetPhase("evaluating");
    const Evaluation evaluation =
        EvaluateAtEnd(task.validation, "eval", trainer.has_value(), options, accelerator, task);
    if (!evaluation.complete)
      return EndEvaluation(trainer.has_value(), options, accelerator, printer);
    CheckFinite(evaluation, "evaluation", options, task, trainer ? &*trainer : nullptr);
    nlohmann::json metrics = EvalMetrics(evaluation, *task.validation.dataset);
    if (trainer) metrics["epoch"] = trainer->state().epoch;
    if (out) out->WriteJson("eval_results.json", metrics);
    results.update(metrics);
    PrintMetrics(printer.out(), "eval", metrics);
  }
  if (options.do_predict) {
    accelerator.SetPhase("predicting");
    const Evaluation evaluation =
        EvaluateAtEnd(task.test, "predict", trainer.has_value(), options, accelerator, task);
    if (!evaluation.complete)
      return EndEvaluation(trainer.has_value(), options, accelerator, printer);
    CheckFinite(evaluation, "test", options, task, trainer ? &*trainer : nullptr);
    if (out)
      out->Write("predict_results.tsv", PredictionTable(evaluation, task.labels, task.label_names));
  }
  if (out && !results.empty()) out->WriteJson("all_results.json", results);
  return 0;
}

// Returns true if another rank reports this mistake on the command line, which was found before the
// ranks knew of each other. Most ranks have the same mistake, and the first rank of a machine
// reports it and ends. `lathe launch` knows whether a rank has ended; under other launchers it is
// taken to have.
bool LocalMainReportsUsage() {
  const ProcessEnvironment environment = ReadProcessEnvironment();
  if (std::getenv(kEndedRanks) == nullptr) return environment.local_rank > 0;
  for (int look = 0; environment.local_rank > 0 && look < 20; ++look) {
    if (FindEndedRank(environment)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  SetRankPrefix();
  return false;
}

// If several ranks fail with the same error, the lowest rank reports it. If a rank is lost, one
// rank on each machine reports that.
int WithErrorsReportedOnce(const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& e) {
    if (JoinedGroup() == nullptr ? LocalMainReportsUsage() : LowerRankReports(e))
      throw ReportedElsewhere{kUsageExitCode};
    throw;
  } catch (const LostRankError& e) {
    return ReportErrors(kLostRankExitCode, [&]() -> int { throw e; });
  } catch (const Error& e) {
    const RankLoss* lost = FindRankLoss(e);
    if (lost == nullptr) {
      const bool elsewhere = JoinedGroup() == nullptr ? LocalMainReports(ReadProcessEnvironment())
                                                      : LowerRankReports(e);
      if (elsewhere) throw ReportedElsewhere{};
      throw;
    }
    if (!ShouldReportLostRanks(*lost, ReadProcessEnvironment()))
      throw ReportedElsewhere{kLostRankExitCode};
    return ReportErrors(kLostRankExitCode, [&]() -> int { throw e; });
  }
}

ParsedOptions Parse(const std::vector<std::string>& args) {
  try {
    ParsedOptions parsed = ParseOptions(args);
    // ReadDevice and ReadTimeout throw if an environment variable is wrong.
    if (!parsed.help && parsed.options.device == "auto") ReadDevice();
    if (!parsed.help && parsed.options.ddp_timeout == 0) ReadTimeout();
    return parsed;
  } catch (const Error& e) {
    throw UsageError(e.message(), e.hint(), e.location());
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  using namespace lathe;
  WaitBriefly(argv);
  InstallInterruptHandler();
  return ReportErrors(kErrorExitCode, [&] {
    return WithErrorsReportedOnce([&] {
      const ParsedOptions parsed = Parse({argv + 1, argv + argc});
      if (!parsed.help) return Finetune(parsed);
      if (ReadProcessEnvironment().rank == 0) std::cout << *parsed.help;
      return 0;
    });
  });
}
