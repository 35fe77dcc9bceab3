// Writes one JSON object a line, for programs that read a training's numbers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lathe/core/trackers/append_file.h"
#include "lathe/core/trackers/tracker.h"

namespace lathe {

// The file is metrics.jsonl in the folder. A line has "step" and "epoch", if they are known, "time"
// in seconds since 1970, and the values by their names:
//
//   {"step":20,"epoch":0.5,"time":1700000000.25,"train/loss":0.693,"train/learning_rate":3e-05}
//
// "epoch" is the value that the Trainer calls "train/epoch". The first line of a run has
// "hyperparameters" instead of values. A number that is not finite is null. A later run goes on in
// the same file. Where a training has gone back to a checkpoint, a step has more than one line, and
// the last one counts.
class JsonlTracker : public Tracker {
 public:
  // `clock` replaces the system's clock; it returns seconds since 1970.
  explicit JsonlTracker(std::string folder, std::function<double()> clock = {});

  std::string name() const override { return "jsonl"; }
  // They throw FileError if the file can't be made or written to. What is in the file then stays as
  // it was.
  void Start(const nlohmann::json& hyperparameters) override;
  void Log(const nlohmann::json& values, std::optional<int64_t> step) override;
  void Finish() override { file_ = nullptr; }

 private:
  void Write(nlohmann::ordered_json line);

  std::string folder_;
  std::function<double()> clock_;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace lathe
