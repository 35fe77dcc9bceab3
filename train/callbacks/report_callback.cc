#include "lathe/train/callbacks/report_callback.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/train/report/confusion.h"
#include "lathe/train/report/figure_files.h"
#include "lathe/train/report/rank_costs_text.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr std::chrono::seconds kPause(10);
constexpr std::chrono::seconds kFirstPause(30);  // before the first page without a log
constexpr size_t kMostSamples = 1000;            // of speed and memory

// Returns the memory that this process holds now.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns the present time: "2026-01-02 03:04:05 UTC".
std::string TimeNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

std::string StepOf(const TrainerState& state) {
  return "step " + FormatCount(state.global_step) + " of " + FormatCount(state.max_steps) +
         FormatNumber(", epoch %.2f", state.epoch);
}

// Returns rows for the numbers of the entry, such as {"eval_loss", "0.5"}.
std::vector<std::pair<std::string, std::string>> Rows(const nlohmann::json& metrics) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& [name, value] : metrics.items()) {
    if (value.is_number()) rows.emplace_back(name, FormatNumber("%.6g", value.get<double>()));
  }
  return rows;
}

}  // namespace

ReportCallback::ReportCallback(Options options) : options_(std::move(options)) {
  contents_.title = options_.title;
  contents_.command = options_.command;
  contents_.facts = options_.facts;
  contents_.lengths = std::move(options_.lengths);
}

ReportCallback::~ReportCallback() {
  if (ended_ || written_ == Clock::time_point()) return;
  contents_.status = "The training has ended before its last step.";
  contents_.running = false;
  try {
    Write();
  } catch (const std::exception&) {
    // The report is not worth a crash.
  }
}

void ReportCallback::OnTrainBegin(const TrainingArguments&, const TrainerState& state,
                                  TrainerControl&) {
  if (options_.folder.empty() || !state.is_world_process_zero) return;
  begun_ = true;
  begin_ = Clock::now();
  Sample(state);
}

void ReportCallback::OnStepEnd(const TrainingArguments&, const TrainerState& state,
                               TrainerControl&) {
  if (!begun_) return;
  AddSteps(state);
  if (state.learning_rate) learning_rates_.Add(state.global_step, *state.learning_rate);
  const Clock::time_point now = Clock::now();
  if (now - sampled_ >= pause_of_samples_) Sample(state);
  const bool is_due =
      written_ == Clock::time_point() ? now - begin_ >= kFirstPause : now - written_ >= kPause;
  if (!is_due) return;
  Take(state);
  Write();
}

void ReportCallback::AddSteps(const TrainerState& state) {
  for (const StepResult& result : state.read_steps) {
    losses_.Add(result.step, result.loss);
    grad_norms_.Add(result.step, result.grad_norm);
  }
}

void ReportCallback::OnLog(const TrainingArguments&, const TrainerState& state, TrainerControl&,
                           const nlohmann::json&) {
  if (!begun_) return;
  AddSteps(state);
  Sample(state);
  if (written_ != Clock::time_point() && Clock::now() - written_ < kPause) return;
  Take(state);
  Write();
}

void ReportCallback::OnTrainEnd(const TrainingArguments&, const TrainerState& state,
                                TrainerControl&) {
  if (!begun_) return;
  ended_ = true;
  AddSteps(state);
  Take(state);
  contents_.running = false;
  contents_.status = state.global_step < state.max_steps
                         ? "The training has ended early, after " + StepOf(state) + "."
                         : "The training has ended, after " + StepOf(state) + ".";
  for (const nlohmann::json& entry : state.log_history) {
    if (!entry.contains("train_loss")) continue;
    AddSpeedOfSteps(entry, state.seconds_beside_steps);
    if (std::string costs = RankCostsText(entry); !costs.empty())
      contents_.facts.emplace_back("cost of the ranks", std::move(costs));
    for (auto& row : Rows(entry)) {
      if (row.first.ends_with("_per_second")) row.second += ", evaluations and saves included";
      if (row.first.starts_with("train_")) contents_.facts.push_back(std::move(row));
    }
  }
  Write();
}

void ReportCallback::AddSpeedOfSteps(const nlohmann::json& metrics, double seconds_beside) {
  const double seconds = metrics.value("train_runtime", 0.0);
  const double of_steps = seconds - seconds_beside;
  if (!(of_steps > 0)) return;
  const double speed = metrics.value("train_samples_per_second", 0.0) * seconds / of_steps;
  contents_.facts.emplace_back(
      "speed of the steps",
      FormatNumber("%.6g samples a second", speed) +
          FormatNumber(", without %.3g s of evaluations and saves", seconds_beside));
}

void ReportCallback::AddResults(const nlohmann::json& metrics, const nlohmann::json& report,
                                const std::string& errors) {
  if (!begun_) return;
  contents_.evaluation = report;
  contents_.errors = errors;
  for (auto& row : Rows(metrics)) contents_.facts.push_back(std::move(row));
  Write();
}

void ReportCallback::Sample(const TrainerState& state) {
  sampled_ = Clock::now();
  const std::chrono::duration<double> all = sampled_ - begin_;
  if (!contents_.resources.empty() && contents_.resources.back().step == state.global_step) return;
  contents_.resources.push_back({.step = state.global_step,
                                 .seconds = all.count() - state.seconds_beside_steps,
                                 .tokens = state.num_input_tokens_seen,
                                 .resident_bytes = ResidentBytes()});
  if (contents_.resources.size() < kMostSamples) return;
  // Every second one goes, and later ones come half as often. The last one stays.
  size_t kept = 0;
  for (size_t i = 1; i < contents_.resources.size(); i += 2)
    contents_.resources[kept++] = contents_.resources[i];
  contents_.resources.resize(kept);
  pause_of_samples_ *= 2;
}

void ReportCallback::Take(const TrainerState& state) {
  contents_.running = true;
  // A killed process leaves this page behind, so it says only what was so when it was written.
  contents_.status = "The training was at " + StepOf(state) + ".";
  contents_.log_history = state.log_history;
  contents_.losses = losses_.Points("training");
  contents_.learning_rates = learning_rates_.Points("rate");
  contents_.grad_norms = grad_norms_.Points("norm");
}

void ReportCallback::Write() {
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> pause =
      written_ == Clock::time_point() ? kPause : now - written_;
  contents_.seconds_between_writings = std::max(contents_.seconds_between_writings, pause.count());
  written_ = now;
  contents_.written = TimeNow();
  is_written_ = false;
  try {
    const std::vector<Figure> figures = MakeFigures(contents_);
    WriteFileAtomically(options_.folder + "/report.html", ReportPage(contents_, figures));
    is_written_ = true;
    if (contents_.running) return;
    std::map<std::string, std::string> files;
    for (const Figure& figure : figures) files[figure.name] = figure.svg;
    if (const std::string matrix = ConfusionSvg(contents_.evaluation); !matrix.empty())
      files["confusion_matrix"] = matrix;
    WriteFigureFiles(options_.folder, files);
  } catch (const Error& e) {
    NoteOnce(e.message());
  } catch (const std::exception& e) {
    NoteOnce(e.what());
  }
}

void ReportCallback::NoteOnce(const std::string& reason) {
  if (std::exchange(failed_, true)) return;
  std::cerr << "note: the report can't be written: " << reason << std::endl;
}

}  // namespace lathe
