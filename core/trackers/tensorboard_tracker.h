// Writes TensorBoard's event files: `tensorboard --logdir FOLDER` shows them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/trackers/append_file.h"
#include "lathe/core/trackers/tracker.h"

namespace lathe {

// What an event file says about its origin. Tests set it, so that they get the same bytes again.
struct EventOrigin {
  std::function<double()> clock = {};   // seconds since 1970; empty: the system's clock
  std::string host = {};                // empty: this machine's name
  std::optional<int64_t> process = {};  // nullopt: this process's id
  std::optional<int64_t> number = {};   // nullopt: one more than that of the process's last file
};

// A number becomes a point of the curve of its name, a boolean one at 0 or 1, and a text a text.
// A list, for which TensorBoard has no curve, becomes its text in JSON. A value in an object gets
// the tag "object/value". Hyperparameters become a row of the table of
// hyperparameters and, as with Transformers' TensorBoardCallback, the text "args". An object among
// them becomes a text of its own. TensorBoard puts values without a step at step 0.
class TensorBoardTracker : public Tracker {
 public:
  // Each object writes a new file into `folder`, from Start or its first Log on.
  explicit TensorBoardTracker(std::string folder, EventOrigin origin = {});

  std::string name() const override { return "tensorboard"; }
  // All of them throw FileError if the file can't be made or written to.
  void Start(const nlohmann::json& hyperparameters) override;
  void Log(const nlohmann::json& values, std::optional<int64_t> step) override;
  void Finish() override;

 private:
  // Writes the values in one event, which readers see at once.
  void Write(int64_t step, const std::vector<std::string>& values);
  void Open();

  std::string folder_;
  EventOrigin origin_;
  std::unique_ptr<AppendFile> file_;
  bool has_hyperparameters_ = false;
};

}  // namespace lathe
