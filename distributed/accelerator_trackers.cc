// Where a loop's numbers go while it trains.
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/accelerator_state.h"
#include "lathe/distributed/trackers/tracker_list.h"

namespace lathe {

void Accelerator::InitTrackers(const std::string& project) {
  InitTrackers(project, nlohmann::json::object());
}

void Accelerator::InitTrackers(const std::string& project, const nlohmann::json& config) {
  Check(config.is_object() || config.is_null(), "init_trackers", "config must be an object but is ",
        config.type_name());
  Check(state_->trackers.empty(), "init_trackers",
        "trackers run already; EndTraining must come between two calls");
  if (!is_main_process()) return;
  const ProjectConfiguration& folders = options_.project;
  const std::string parent =
      folders.logging_dir.empty() ? folders.project_dir : folders.logging_dir;
  std::vector<std::shared_ptr<Tracker>> trackers =
      MakeTrackers(options_.log_with, project.empty() ? parent : parent + "/" + project);
  trackers.insert(trackers.end(), options_.trackers.begin(), options_.trackers.end());
  state_->trackers = TrackerList(std::move(trackers),
                                 [](const std::string& line) { std::cerr << line << std::endl; });
  state_->trackers.Start(config.is_null() ? nlohmann::json::object() : config);
}

void Accelerator::Log(const nlohmann::json& values, std::optional<int64_t> step) {
  Check(values.is_object(), "log", "values must be an object but is ", values.type_name());
  state_->trackers.Log(values, step);
}

void Accelerator::EndTraining() {
  state_->trackers.Finish();
  WaitForEveryone();
}

}  // namespace lathe
