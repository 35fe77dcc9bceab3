// The part of the trainer that checks its callbacks, and keeps their states in checkpoints.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/train/trainer.h"

namespace lathe {

void Trainer::CheckCallbacks() {
  for (const auto& callback : callbacks_)
    Check(callback != nullptr, "trainer", "a callback is null");
  CheckCallbackStates();
  const auto setters = std::ranges::count_if(
      callbacks_, [](const auto& callback) { return callback->SetsControl(); });
  const bool main_decides = keeps_checkpoints() && arguments_.save_seconds > 0;  // by its clock
  agrees_on_control_ = accelerator_.use_distributed() && (setters > 0 || main_decides);
  if (!accelerator_.use_distributed()) return;
  accelerator_.CheckSame({{"number of callbacks that set the control", std::to_string(setters)},
                          {"output folder", saves() ? "given" : "none"},
                          {"save_strategy", arguments_.save_strategy},
                          {"save_steps", std::to_string(state_.save_steps)},
                          {"resume_from_checkpoint", arguments_.resume_from_checkpoint},
                          {"evaluation data", inputs_.evaluation != nullptr ? "given" : "none"}});
}

void Trainer::CheckCallbackStates() const {
  std::set<std::string> names = {kOwnState, kHubCommits, kMixedSteps};
  for (const auto& callback : callbacks_) {
    const std::string name = callback->StateName();
    Check(name.empty() || names.insert(name).second, "trainer",
          "two callbacks keep their states under the name ", name);
  }
  if (arguments_.early_stopping_patience && !names.contains("EarlyStoppingCallback")) {
    throw InvalidArgument("early_stopping_patience needs an EarlyStoppingCallback",
                          "add one to the Trainer's callbacks");
  }
}

void Trainer::CollectCallbackStates() {
  for (const auto& callback : callbacks_) {
    if (const std::string name = callback->StateName(); !name.empty())
      state_.stateful_callbacks[name] = callback->State();
  }
}

void Trainer::LoadCallbackStates(const nlohmann::json& saved, const std::string& file) {
  // The key is there, because LoadCheckpoint has already read the Trainer's own state from it.
  const nlohmann::json& states = saved.at("stateful_callbacks");
  for (const auto& callback : callbacks_) {
    const std::string name = callback->StateName();
    if (name.empty() || !states.contains(name)) continue;  // this callback is new
    try {
      callback->LoadState(states.at(name));
    } catch (const nlohmann::json::exception& e) {
      throw DataLoss(file + ": \"" + name + "\": " + WithoutTag(e.what()));
    } catch (const Error& e) {
      throw DataLoss(file + ": \"" + name + "\": " + WithoutTag(e.message()), e.hint());
    }
  }
}

}  // namespace lathe
