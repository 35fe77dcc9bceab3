#include "lathe/core/trackers/tensorboard_tracker.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/json/json_text.h"
#include "lathe/core/trackers/event_file.h"
#include "lathe/core/trackers/tracker_values.h"

namespace lathe {
namespace {

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == 0) return "localhost";
  return name.data();
}

// All texts go through Utf8Text, since readers of Protocol Buffers refuse others.
void AddValues(const nlohmann::json& values, const std::string& prefix,
               std::vector<std::string>& out) {
  for (const auto& [key, value] : values.items()) {
    const std::string tag = prefix + Utf8Text(key);
    if (value.is_object()) {
      AddValues(value, tag + "/", out);
    } else if (value.is_boolean()) {
      out.push_back(ScalarValue(tag, value.get<bool>() ? 1 : 0));
    } else if (value.is_number()) {
      out.push_back(ScalarValue(tag, value.get<double>()));
    } else if (value.is_string()) {
      out.push_back(TextValue(tag, value.get_ref<const std::string&>()));
    } else if (value.is_array()) {
      out.push_back(TextValue(tag, DumpJson(value)));
    }
  }
}

}  // namespace

TensorBoardTracker::TensorBoardTracker(std::string folder, EventOrigin origin)
    : folder_(std::move(folder)), origin_(std::move(origin)) {
  if (!origin_.clock) origin_.clock = SecondsSince1970;
}

void TensorBoardTracker::Open() {
  static std::atomic<int64_t> files{0};
  const double now = origin_.clock();
  const std::string name =
      EventFileName(static_cast<int64_t>(now), origin_.host.empty() ? HostName() : origin_.host,
                    origin_.process.value_or(getpid()), origin_.number ? *origin_.number : files++);
  auto file = std::make_unique<AppendFile>(folder_ + "/" + name);
  file->Append(EventRecord(VersionEvent(now)));
  file_ = std::move(file);
}

void TensorBoardTracker::Write(int64_t step, const std::vector<std::string>& values) {
  if (file_ == nullptr) Open();
  if (!values.empty()) file_->Append(EventRecord(SummaryEvent(origin_.clock(), step, values)));
}

void TensorBoardTracker::Start(const nlohmann::json& hyperparameters) {
  std::vector<std::string> values;
  nlohmann::json args = nlohmann::json::object(), row = args;
  for (const auto& [key, value] : hyperparameters.items()) {
    const std::string name = Utf8Text(key);
    if (value.is_object()) {
      values.push_back(TextValue(name, DumpJson(value, 2)));
      continue;
    }
    args[name] = value;
    if (value.is_string()) {
      row[name] = Utf8Text(value.get<std::string>());
    } else {
      row[name] = value.is_array() ? nlohmann::json(DumpJson(value)) : value;
    }
  }
  has_hyperparameters_ = !args.empty();
  if (has_hyperparameters_) {
    values.push_back(TextValue("args", DumpJson(args, 2)));
    values.push_back(HyperparametersValue(row, origin_.clock()));
  }
  Write(0, values);
}

void TensorBoardTracker::Log(const nlohmann::json& values, std::optional<int64_t> step) {
  std::vector<std::string> encoded;
  AddValues(values, "", encoded);
  Write(step.value_or(0), encoded);
}

void TensorBoardTracker::Finish() {
  if (has_hyperparameters_) Write(0, {HyperparametersEndValue(origin_.clock())});
  file_ = nullptr;
  has_hyperparameters_ = false;
}

}  // namespace lathe
