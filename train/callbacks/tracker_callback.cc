#include "lathe/train/callbacks/tracker_callback.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "lathe/train/support/hyperparameters.h"

namespace lathe {
namespace {

// Returns "runs/Nov26_10-22-29_host", as Transformers names a training's folder.
std::string DefaultFolder() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 64> time{};
  std::strftime(time.data(), time.size(), "%b%d_%H-%M-%S", &local);
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return "runs/" + std::string(time.data()) + "_" + host.data();
}

std::string FolderOf(const TrainingArguments& arguments) {
  if (!arguments.logging_dir.empty()) return arguments.logging_dir;
  if (const char* set = std::getenv("TENSORBOARD_LOGGING_DIR"); set != nullptr && *set != 0)
    return set;
  return (arguments.output_dir.empty() ? "" : arguments.output_dir + "/") + DefaultFolder();
}

}  // namespace

nlohmann::json TrackedValues(const nlohmann::json& logs) {
  nlohmann::json values = nlohmann::json::object();
  for (const auto& [name, value] : logs.items()) {
    if (name == "step") continue;
    const bool of_evaluation = name.starts_with("eval_"), of_test = name.starts_with("test_");
    values[of_evaluation || of_test ? name.substr(0, 4) + "/" + name.substr(5) : "train/" + name] =
        value;
  }
  return values;
}

TrackerCallback::TrackerCallback(nlohmann::json hyperparameters)
    : hyperparameters_(std::move(hyperparameters)) {}

void TrackerCallback::Open(const TrainingArguments& arguments,
                           const nlohmann::json& hyperparameters) {
  if (folder_.empty()) folder_ = FolderOf(arguments);
  trackers_ = TrackerList(MakeTrackers(TrackerNames(arguments.report_to, "report_to"), folder_),
                          [this](const std::string& line) {
                            // A later start in the same folder fails in the same way.
                            if (std::ranges::find(told_, line) != told_.end()) return;
                            told_.push_back(line);
                            warnings_.push_back(line);
                          });
  trackers_.Start(hyperparameters);
}

void TrackerCallback::Report(TrainerControl& control) {
  for (std::string& warning : std::exchange(warnings_, {}))
    control.warnings.push_back(std::move(warning));
}

void TrackerCallback::OnTrainBegin(const TrainingArguments& arguments, const TrainerState& state,
                                   TrainerControl& control) {
  if (!state.is_world_process_zero) return;
  if (hyperparameters_.empty()) hyperparameters_ = TrainerHyperparameters(arguments);
  Open(arguments, hyperparameters_);
  Report(control);
}

void TrackerCallback::OnLog(const TrainingArguments&, const TrainerState& state,
                            TrainerControl& control, const nlohmann::json& logs) {
  if (trackers_.empty()) return;
  trackers_.Log(TrackedValues(logs), state.global_step);
  Report(control);
}

void TrackerCallback::OnTrainEnd(const TrainingArguments&, const TrainerState&,
                                 TrainerControl& control) {
  trackers_.Finish();
  Report(control);
}

std::vector<std::string> TrackerCallback::LogEvaluation(const TrainingArguments& arguments,
                                                        int64_t step,
                                                        const nlohmann::json& metrics) {
  Open(arguments, nlohmann::json::object());
  trackers_.Log(TrackedValues(metrics), step);
  trackers_.Finish();
  return std::exchange(warnings_, {});
}

}  // namespace lathe
