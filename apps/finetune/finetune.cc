// The `finetune` program: trains, evaluates and predicts as run_glue does.
#include <absl/strings/str_join.h>
#include <omp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/printer.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/cli/restart_with_short_spin.h"
#include "lathe/apps/finetune/card_facts.h"
#include "lathe/apps/finetune/check_ranks_agree.h"
#include "lathe/apps/finetune/class_results.h"
#include "lathe/apps/finetune/decisions.h"
#include "lathe/apps/finetune/found_output.h"
#include "lathe/apps/finetune/report_page_options.h"
#include "lathe/apps/finetune/resume_command.h"
#include "lathe/apps/finetune/run_end.h"
#include "lathe/apps/finetune/summary.h"
#include "lathe/apps/finetune/tracked_options.h"
#include "lathe/apps/options/options.h"
#include "lathe/apps/results/results_table.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/log.h"
#include "lathe/core/hub/transfer_progress.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/job/job.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/train/callbacks/callbacks.h"
#include "lathe/train/checkpoint/folder_claim.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/loss_options.h"
#include "lathe/train/report/figure_files.h"
#include "lathe/train/report/rank_costs_text.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/output_dir.h"
#include "lathe/train/support/progress.h"
#include "lathe/train/task/task.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

constexpr char kNothingDone[] = "interrupted before the first step; nothing was written";

Accelerator MakeAccelerator(const FinetuneArguments& options) {
  // Other ranks may never join. No rank knows the others yet, so one on each machine prints.
  const InterruptAlarm alarm([](int signal_number) {
    if (ReadProcessEnvironment().local_rank == 0) std::cout << kNothingDone << std::endl;
    _exit(InterruptedExitCode(signal_number));
  });
  return Accelerator(AcceleratorOptionsOf(options));
}

// One run of the program, from the loading of the task to the last file of results.
class FinetuneRun {
 public:
  // `parsed` must outlive this object.
  explicit FinetuneRun(const ParsedOptions& parsed)
      : parsed_(parsed),
        options_(parsed.options),
        accelerator_(MakeAccelerator(options_)),
        printer_(accelerator_.is_main_process()) {}

  // Trains, evaluates and predicts as the options ask. Returns the exit code.
  int Run();

 private:
  void OpenOutput();
  void Load();
  void CheckMetricName() const;
  std::vector<std::shared_ptr<Callback>> MakeCallbacks();
  void MakeTrainer();
  // Each of these returns the exit code if a signal has ended it, and nullopt if it is complete.
  std::optional<int> Train();
  std::optional<int> EvaluateModel();
  std::optional<int> Predict();
  // Evaluates after all steps. If a rank is lost, the error says where the trained model is.
  // `encodings` are those of earlier evaluations on these data; may be null.
  Evaluation EvaluateAtEnd(const TaskData& data, const std::string& title,
                           KeptEncodings* encodings);
  // Ends a run whose evaluation after all steps was interrupted. Returns the exit code. The trained
  // model is saved already.
  int EndInterruptedEvaluation();
  // Gives the results of the evaluation after all steps to trackers and to the model card.
  void ReportEvaluation(const nlohmann::json& metrics);
  // Throws if a number in the evaluation is not finite. A trained model first goes back to its last
  // good state; a model that was only read is refused.
  void CheckFinite(const Evaluation& evaluation, const std::string& data);

  const ParsedOptions& parsed_;
  const FinetuneArguments& options_;
  Accelerator accelerator_;
  Printer printer_;
  std::optional<OutputDir> out_;      // on the main process
  std::optional<FolderClaim> claim_;  // there, if it trains: while data is read, too
  Task task_;
  std::shared_ptr<EarlyStoppingCallback> early_stopping_;  // null without a patience
  std::shared_ptr<ReportCallback> report_;                 // null before the training
  std::shared_ptr<TrackerCallback> tracker_;
  std::shared_ptr<ModelCardCallback> card_;  // if there is something to train
  std::optional<Trainer> trainer_;           // if there is something to train
  nlohmann::json results_ = nlohmann::json::object();
};

void FinetuneRun::OpenOutput() {
  nlohmann::json refusal = nlohmann::json::array();
  if (accelerator_.is_main_process()) {
    try {
      CheckHidesNoModel(options_);
      // A folder in use is refused as such, and not because it is filled.
      if (options_.do_train) CheckNotClaimed(options_.output_dir);
      out_.emplace(options_.output_dir, !options_.do_train || MayUseFilledOutputDir(options_));
      if (options_.do_train) claim_.emplace(out_->path());
      CheckNoOtherModel(*out_, options_);
    } catch (const UsageError& e) {
      refusal = {e.message(), e.hint()};
    }
  }
  // All ranks refuse alike, so that no launcher of another machine starts its ranks again.
  if (accelerator_.use_distributed()) {
    refusal = ParseJson(accelerator_.GatherObject(DumpJson(refusal))[0]);
  }
  if (!refusal.empty()) throw UsageError(refusal[0].get<std::string>(), refusal[1]);
}

void FinetuneRun::Load() {
  accelerator_.SetPhase("reading data");
  // Reading files may take any time, so a lost rank and a signal must be able to end it.
  const LostRankAlarm lost_rank_alarm(accelerator_.group());
  const InterruptAlarm interrupt_alarm([this](int signal_number) {
    claim_.reset();
    out_.reset();
    const std::string download = AbandonDownload();
    printer_.out() << (download.empty() ? kNothingDone : download) << std::endl;
    _exit(InterruptedExitCode(signal_number));
  });
  task_ = LoadTask(options_, accelerator_, parsed_.open_columns);
  if (out_) {
    for (std::string& note : NotesOfCutSaves(*out_)) task_.notes.push_back(std::move(note));
  }
  CheckMetricName();
  PrintColumnNotes(task_, accelerator_);
}

void FinetuneRun::CheckMetricName() const {
  if (options_.metric_name.empty()) return;
  const auto names =
      MetricNames(task_.labels.kind(), task_.labels.num_labels(), options_.task_name);
  if (std::find(names.begin(), names.end(), options_.metric_name) != names.end()) return;
  throw UsageError("--metric_name must be one of " + absl::StrJoin(names, ", ") + " but is \"" +
                   options_.metric_name + "\"");
}

std::vector<std::shared_ptr<Callback>> FinetuneRun::MakeCallbacks() {
  std::vector<std::shared_ptr<Callback>> callbacks = {
      std::make_shared<ProgressCallback>(), std::make_shared<StateCallback>(),
      std::make_shared<ColumnsCallback>(task_.columns)};
  if (options_.early_stopping_patience) {
    early_stopping_ = std::make_shared<EarlyStoppingCallback>(*options_.early_stopping_patience,
                                                              options_.early_stopping_threshold);
    callbacks.push_back(early_stopping_);
  }
  if (options_.report && out_) {
    report_ = std::make_shared<ReportCallback>(ReportPageOptions(options_, task_, out_->path()));
    callbacks.push_back(report_);
  }
  callbacks.push_back(tracker_);
  card_ = std::make_shared<ModelCardCallback>(CardFactsOf(options_, accelerator_));
  callbacks.push_back(card_);
  return callbacks;
}

void FinetuneRun::MakeTrainer() {
  trainer_.emplace(options_, accelerator_,
                   TrainerInputs{.model = task_.model,
                                 .train = task_.train.dataset,
                                 .evaluation = task_.validation.dataset,
                                 .train_name = task_.train.path,
                                 .tokenizer = task_.tokenizer,
                                 .load_tokenizer = [this] { return LoadTokenizer(task_.options); },
                                 .out = out_ ? &*out_ : nullptr,
                                 .max_seq_length = options_.max_seq_length,
                                 .hub_commits = task_.hub_commits},
                   MakeCallbacks());
}

std::optional<int> FinetuneRun::Train() {
  trainer_->Train();
  if (out_ && !options_.report) RemoveFigureFiles(out_->path());  // they tell of another model
  if (early_stopping_ != nullptr && !early_stopping_->reason().empty()) {
    printer_.out() << "stopped early after step " << trainer_->state().global_step << ": "
                   << early_stopping_->reason() << std::endl;
  }
  results_.update(trainer_->metrics());
  PrintMetrics(printer_.out(), "train", trainer_->metrics());
  if (const std::string costs = RankCostsText(trainer_->metrics()); !costs.empty())
    printer_.out() << "ranks: " << costs << std::endl;
  if (!trainer_->interrupted()) return std::nullopt;
  const bool is_best = options_.load_best_model_at_end && !trainer_->state().best_model_is_gone;
  const int64_t best = is_best ? trainer_->state().best_global_step.value_or(0) : 0;
  printer_.out() << "interrupted after step " << trainer_->state().global_step << "; the "
                 << (best > 0 ? "best model, of step " + std::to_string(best) + "," : "model")
                 << " is in " << options_.output_dir << std::endl;
  printer_.out() << HowToGoOn(trainer_->last_checkpoint(), accelerator_.num_processes())
                 << std::endl;
  return EndInterrupted(accelerator_);
}

Evaluation FinetuneRun::EvaluateAtEnd(const TaskData& data, const std::string& title,
                                      KeptEncodings* encodings) {
  try {
    std::optional<Progress> progress;
    const auto show = [&](int64_t num_batches) {
      progress.emplace(
          Progress::Options{.title = title,
                            .total = num_batches,
                            .unit = "batch",
                            .enabled = !options_.disable_tqdm && accelerator_.is_main_process()});
    };
    return Evaluate(accelerator_, *task_.model, data.dataset,
                    {.per_device_batch_size = options_.per_device_eval_batch_size,
                     .on_begin = show,
                     .on_batch = [&] { progress->Update(1); },
                     .encodings = encodings});
  } catch (const Error& e) {
    if (!trainer_ || FindLostRanks(e) == nullptr) throw;
    throw AddToHint(e, "; the trained model is in " + options_.output_dir);
  }
}

int FinetuneRun::EndInterruptedEvaluation() {
  if (trainer_)
    printer_.out() << "interrupted; the trained model is in " << options_.output_dir << std::endl;
  return EndInterrupted(accelerator_);
}

void FinetuneRun::CheckFinite(const Evaluation& evaluation, const std::string& data) {
  if (trainer_) return trainer_->CheckFinite(evaluation, data);
  const std::string problem = FirstNotFinite(evaluation, task_.labels.num_labels(), data);
  if (problem.empty()) return;
  throw InvalidArgument(
      options_.model_name_or_path + ": " + problem,
      "the model's weights are damaged; train it again, at a lower learning rate");
}

void FinetuneRun::ReportEvaluation(const nlohmann::json& metrics) {
  if (!accelerator_.is_main_process()) return;
  const int64_t step = trainer_ ? trainer_->state().global_step : 0;
  std::vector<std::string> warnings = tracker_->LogEvaluation(options_, step, metrics);
  if (card_ != nullptr) {
    for (std::string& warning : card_->Write(options_, trainer_->state(), metrics))
      warnings.push_back(std::move(warning));
  }
  for (const std::string& warning : warnings) printer_.out() << warning << std::endl;
}

std::optional<int> FinetuneRun::EvaluateModel() {
  accelerator_.SetPhase("evaluating");
  Evaluation evaluation =
      EvaluateAtEnd(task_.validation, "eval", trainer_ ? trainer_->encodings() : nullptr);
  if (!evaluation.complete) return EndInterruptedEvaluation();
  CheckFinite(evaluation, "evaluation");
  FitDecisionTo(evaluation, options_, task_, out_ ? &*out_ : nullptr, printer_.out());
  nlohmann::json metrics = EvalMetrics(evaluation, *task_.validation.dataset, options_.task_name);
  if (trainer_) metrics["epoch"] = trainer_->state().epoch;
  if (out_) out_->WriteJson("eval_results.json", metrics);
  results_.update(metrics);
  ReportEvaluation(metrics);
  PrintMetrics(printer_.out(), "eval", metrics);
  ClassResults classes;
  if (out_ && task_.labels.kind() != LabelKind::kRegression)
    classes = WriteClassResults(evaluation, task_, *out_, printer_.out());
  if (report_) report_->AddResults(metrics, classes.report, classes.errors);
  return std::nullopt;
}

std::optional<int> FinetuneRun::Predict() {
  accelerator_.SetPhase("predicting");
  const Evaluation evaluation = EvaluateAtEnd(task_.test, "predict", nullptr);
  if (!evaluation.complete) return EndInterruptedEvaluation();
  CheckFinite(evaluation, "test");
  if (out_) {
    out_->Write("predict_results.tsv",
                PredictionTable(evaluation, task_.labels, task_.label_names));
  }
  return std::nullopt;
}

int FinetuneRun::Run() {
  OpenOutput();
  if (options_.num_threads > 0) omp_set_num_threads(static_cast<int>(options_.num_threads));
  Load();
  CheckRanksAgree(parsed_, task_, accelerator_);
  accelerator_.Prepare(*task_.model);
  tracker_ = std::make_shared<TrackerCallback>(TrackedHyperparameters(parsed_, task_));
  SetDecisionOfModel(options_, *task_.model, out_ ? &*out_ : nullptr);
  if (options_.do_train) MakeTrainer();
  if (!options_.do_train) {  // the Trainer does this for a model that it trains
    task_.model->set_loss_options(LossOptionsOf(options_, task_.label_names, task_.labels.kind(),
                                                nullptr, accelerator_.device()));
  }
  PrintSummary(printer_.out(), options_, task_, trainer_ ? &*trainer_ : nullptr,
               accelerator_.num_processes(), accelerator_.device());
  if (Interrupted()) accelerator_.SetTrigger();
  if (accelerator_.CheckTrigger()) {
    printer_.out() << kNothingDone << std::endl;
    return EndInterrupted(accelerator_);
  }

  if (out_) results_ = EarlierResults(*out_, options_);
  std::optional<int> interrupted;
  if (trainer_) interrupted = Train();
  if (!interrupted && options_.do_eval) interrupted = EvaluateModel();
  if (!interrupted && options_.do_predict) interrupted = Predict();
  if (interrupted) return *interrupted;
  if (out_ && !results_.empty()) out_->WriteJson("all_results.json", results_);
  if (out_ && options_.do_train) RemoveMark(out_->path());
  if (report_ && report_->is_written())  // or else a note has said why not
    printer_.out() << "the report is in " << out_->File("report.html") << std::endl;
  return 0;
}

int Finetune(const ParsedOptions& parsed) {
  // If the reader of the progress ends, the model is saved all the same. The failed output is
  // reported at the end.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  SetRankPrefix();
  ShowDebugLog(parsed.options.log_level == "debug");
  return FinetuneRun(parsed).Run();
}

ParsedOptions Parse(const std::vector<std::string>& args) {
  try {
    ParsedOptions parsed = ParseOptions(args);
    // These throw if an environment variable is wrong.
    if (!parsed.help && parsed.options.device == "auto") ReadDevice();
    if (!parsed.help && parsed.options.ddp_timeout == 0) ReadTimeout();
    if (!parsed.help) ReadHeartbeatTimeout();
    return parsed;
  } catch (const Error& e) {
    throw UsageError(e.message(), e.hint(), e.location());
  }
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  using namespace lathe;
  RestartWithShortSpin(argv);
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
