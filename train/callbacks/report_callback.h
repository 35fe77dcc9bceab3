// Keeps report.html in the output folder up to date while a training runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/train/callback.h"
#include "lathe/train/report/report_page.h"
#include "lathe/train/report/step_samples.h"

namespace lathe {

// The page appears with the first log, or after half a minute, since a training that ends before
// leaves nothing behind. Its curves have points of their own, at most some hundreds, so that they
// don't depend on --logging_steps. The page is then replaced as a whole, every ten seconds at most,
// so it can stay open in a browser. At the end of the training its figures are also written as
// plots/NAME.svg, and those of an earlier report are removed. A report that can't be written costs
// one note on standard error, and the training goes on.
class ReportCallback : public Callback {
 public:
  struct Options {
    std::string folder;  // where report.html goes; empty: there is no report
    std::string title;
    std::string command;  // what repeats the training
    std::vector<std::pair<std::string, std::string>> facts = {};
    std::vector<int64_t> lengths = {};  // see ReportContents
  };
  explicit ReportCallback(Options options);
  // If the training has not come to its end, the page says so.
  ~ReportCallback() override;
  ReportCallback(const ReportCallback&) = delete;
  ReportCallback& operator=(const ReportCallback&) = delete;

  bool SetsControl() const override { return false; }
  void OnTrainBegin(const TrainingArguments& arguments, const TrainerState& state,
                    TrainerControl& control) override;
  void OnStepEnd(const TrainingArguments& arguments, const TrainerState& state,
                 TrainerControl& control) override;
  void OnLog(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control,
             const nlohmann::json& logs) override;
  void OnTrainEnd(const TrainingArguments& arguments, const TrainerState& state,
                  TrainerControl& control) override;

  // Returns true if report.html could be written at the last attempt.
  bool is_written() const { return is_written_; }

  // Adds the results of an evaluation after the training to the page, and writes it again. `report`
  // and `errors` are ReportContents' evaluation and errors.
  void AddResults(const nlohmann::json& metrics,
                  const nlohmann::json& report = nlohmann::json::object(),
                  const std::string& errors = "");

 private:
  using Clock = std::chrono::steady_clock;

  void Sample(const TrainerState& state);
  // Adds a row with the speed of the steps alone. `metrics` are those of the whole training.
  void AddSpeedOfSteps(const nlohmann::json& metrics, double seconds_beside);
  void AddSteps(const TrainerState& state);
  void Take(const TrainerState& state);
  void Write();
  void NoteOnce(const std::string& reason);

  Options options_;
  ReportContents contents_;
  StepSamples losses_, learning_rates_, grad_norms_;
  Clock::time_point begin_ = Clock::now(), written_ = {}, sampled_ = {};
  Clock::duration pause_of_samples_ = std::chrono::milliseconds(100);
  bool begun_ = false, ended_ = false, failed_ = false, is_written_ = false;
};

}  // namespace lathe
