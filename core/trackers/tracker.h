// Tracker: a place that a training's numbers go to while it runs, so that people can watch them.
// The Trainer feeds trackers through TrackerCallback, a loop of one's own through the Accelerator.
//
//   class Printer : public Tracker {
//    public:
//     std::string name() const override { return "printer"; }
//     void Log(const nlohmann::json& values, std::optional<int64_t> step) override {
//       std::cout << step.value_or(0) << ": " << values << std::endl;
//     }
//   };
//
// Only the main process calls a tracker, and from one thread. What a tracker throws ends no
// training: TrackerList (tracker_list.h) turns it into a warning.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace lathe {

class Tracker {
 public:
  virtual ~Tracker() = default;

  // The tracker's name in messages, such as "tensorboard".
  virtual std::string name() const = 0;

  // Called before the first Log. `hyperparameters` is an object of numbers, booleans, texts and
  // lists. An entry that is an object itself describes a part, such as the model's configuration.
  // It may be empty.
  virtual void Start(const nlohmann::json& /*hyperparameters*/) {}

  // Takes an object of numbers and texts by their names, and the step that they belong to; nullopt
  // if they belong to none. A value that is an object holds further values.
  virtual void Log(const nlohmann::json& values, std::optional<int64_t> step) = 0;

  // Called after the last Log, unless an error ends the program.
  virtual void Finish() {}
};

}  // namespace lathe
