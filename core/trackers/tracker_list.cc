#include "lathe/core/trackers/tracker_list.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/nearest_name.h"
#include "lathe/core/trackers/jsonl_tracker.h"
#include "lathe/core/trackers/tensorboard_tracker.h"

namespace lathe {
namespace {

struct Kind {
  const char* name;
  std::shared_ptr<Tracker> (*make)(const std::string& folder);
};

template <typename T>
std::shared_ptr<Tracker> Make(const std::string& folder) {
  return std::make_shared<T>(folder);
}

// Each tracker of Lathe has a line here.
constexpr Kind kKinds[] = {
    {"tensorboard", Make<TensorBoardTracker>},
    {"jsonl", Make<JsonlTracker>},
};

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string ReasonOf(std::exception_ptr failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& e) {
    return FirstLine(WithoutTag(e.message()));
  } catch (const std::exception& e) {
    return FirstLine(e.what());
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

std::vector<std::string> TrackerNames(const std::vector<std::string>& names,
                                      const std::string& what) {
  std::vector<std::string> known;
  for (const Kind& kind : kKinds) known.emplace_back(kind.name);
  std::vector<std::string> result;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(result, name) == result.end()) result.push_back(name);
  };
  for (const std::string& name : names) {
    if (name == "none") {
      if (names.size() == 1) return {};
      throw InvalidArgument(what + " has none beside other names", "leave none or the others out");
    }
    if (name == "all") {
      std::ranges::for_each(known, add);
    } else if (std::ranges::find(known, name) != known.end()) {
      add(name);
    } else {
      const auto nearest = NearestName(name, known);
      throw InvalidArgument(
          what + " must be tensorboard, jsonl, all or none but is \"" + name + "\"",
          nearest ? "did you mean " + *nearest + "?"
                  : "write files for tensorboard, which other services can import");
    }
  }
  return result;
}

std::vector<std::shared_ptr<Tracker>> MakeTrackers(const std::vector<std::string>& names,
                                                   const std::string& folder) {
  std::vector<std::shared_ptr<Tracker>> trackers;
  for (const std::string& name : names) {
    const auto* const kind = std::ranges::find(kKinds, name, &Kind::name);
    Check(kind != std::end(kKinds), "trackers", "there is no tracker \"", name, "\"");
    trackers.push_back(kind->make(folder));
  }
  return trackers;
}

TrackerList::TrackerList(std::vector<std::shared_ptr<Tracker>> trackers, Warn warn)
    : warn_(std::move(warn)) {
  for (auto& tracker : trackers) {
    Check(tracker != nullptr, "trackers", "a tracker is null");
    entries_.push_back({std::move(tracker)});
  }
}

std::vector<Tracker*> TrackerList::CallAll(const std::function<void(Tracker&)>& call,
                                           const std::string& what, const std::string& outcome) {
  std::vector<Tracker*> failed;
  // Trackers that share a folder may all fail for one reason, which is worth one line.
  std::vector<std::pair<std::string, std::string>> reasons;  // and the names of the trackers
  for (Entry& entry : entries_) {
    try {
      call(*entry.tracker);
    } catch (...) {
      failed.push_back(entry.tracker.get());
      if (std::exchange(entry.warned, true)) continue;
      const std::string reason = ReasonOf(std::current_exception());
      const auto same =
          std::ranges::find(reasons, reason, &std::pair<std::string, std::string>::first);
      if (same == reasons.end()) {
        reasons.emplace_back(reason, entry.tracker->name());
      } else {
        same->second += " and " + entry.tracker->name();
      }
    }
  }
  for (const auto& [reason, names] : reasons)
    warn_("warning: " + names + what + reason + "; training goes on " + outcome);
  return failed;
}

void TrackerList::Start(const nlohmann::json& hyperparameters) {
  const std::vector<Tracker*> failed = CallAll(
      [&](Tracker& tracker) { tracker.Start(hyperparameters); }, " can't start: ", "without it");
  std::erase_if(entries_, [&](const Entry& entry) {
    return std::ranges::find(failed, entry.tracker.get()) != failed.end();
  });
}

void TrackerList::Log(const nlohmann::json& values, std::optional<int64_t> step) {
  CallAll([&](Tracker& tracker) { tracker.Log(values, step); },
          " can't take numbers: ", "and numbers are missing there");
}

void TrackerList::Finish() {
  CallAll([](Tracker& tracker) { tracker.Finish(); }, " can't finish: ", "without it");
  entries_.clear();
}

}  // namespace lathe
