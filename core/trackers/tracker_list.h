// Makes the trackers that users ask for by name, and runs them so that none can end a training.
//
//   TrackerList trackers(MakeTrackers({"tensorboard"}, "logs"), [](const std::string& warning) {
//     std::cerr << warning << std::endl;
//   });
//   trackers.Start({{"learning_rate", 3e-5}});
//   trackers.Log({{"train/loss", 0.5}}, 20);
//   trackers.Finish();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/trackers/tracker.h"

namespace lathe {

// Returns the trackers that the names mean, each once: "all" means each that Lathe has, "none"
// means none. Throws InvalidArgument for other names, and for "none" beside others. Its message
// calls the list `what`.
std::vector<std::string> TrackerNames(const std::vector<std::string>& names,
                                      const std::string& what);

// Makes trackers by names that TrackerNames has returned. All write into the same folder, which
// need not exist yet.
std::vector<std::shared_ptr<Tracker>> MakeTrackers(const std::vector<std::string>& names,
                                                   const std::string& folder);

// Calls its trackers one after the other. If one throws, the others and the program go on, and
// `warn` gets one line about it, which begins with "warning: ". A tracker whose Start has failed is
// called no more. One whose Log has failed is called again, because a full disk may have room
// later; nothing more is said about it.
class TrackerList {
 public:
  using Warn = std::function<void(const std::string& line)>;
  TrackerList() = default;
  TrackerList(std::vector<std::shared_ptr<Tracker>> trackers, Warn warn);

  bool empty() const { return entries_.empty(); }
  void Start(const nlohmann::json& hyperparameters);
  void Log(const nlohmann::json& values, std::optional<int64_t> step);
  // Ends the trackers and forgets them.
  void Finish();

 private:
  struct Entry {
    std::shared_ptr<Tracker> tracker;
    bool warned = false;
  };
  // Calls each tracker and returns those that failed. `what` follows their names in the warning,
  // and `outcome` follows the reason.
  std::vector<Tracker*> CallAll(const std::function<void(Tracker&)>& call, const std::string& what,
                                const std::string& outcome);

  std::vector<Entry> entries_;
  Warn warn_;
};

}  // namespace lathe
