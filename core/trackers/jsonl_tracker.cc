#include "lathe/core/trackers/jsonl_tracker.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/json/json_text.h"
#include "lathe/core/trackers/tracker_values.h"

namespace lathe {

JsonlTracker::JsonlTracker(std::string folder, std::function<double()> clock)
    : folder_(std::move(folder)), clock_(clock ? std::move(clock) : SecondsSince1970) {}

void JsonlTracker::Write(nlohmann::ordered_json line) {
  if (file_ == nullptr) {
    auto file = std::make_unique<AppendFile>(folder_ + "/metrics.jsonl");
    // Without this, the line would become a part of one that a crash has cut off.
    if (file->EndsWithinLine()) file->Append("\n");
    file_ = std::move(file);
  }
  if (!line.empty()) file_->Append(DumpJson(line) + "\n");
}

void JsonlTracker::Start(const nlohmann::json& hyperparameters) {
  nlohmann::ordered_json line;
  if (!hyperparameters.empty()) line = {{"time", clock_()}, {"hyperparameters", hyperparameters}};
  Write(std::move(line));
}

void JsonlTracker::Log(const nlohmann::json& values, std::optional<int64_t> step) {
  constexpr char kEpoch[] = "train/epoch";
  nlohmann::ordered_json line;
  if (step) line["step"] = *step;
  if (values.contains(kEpoch)) line["epoch"] = values[kEpoch];
  line["time"] = clock_();
  for (const auto& [name, value] : values.items()) {
    if (name != kEpoch) line[name] = value;
  }
  Write(std::move(line));
}

}  // namespace lathe
