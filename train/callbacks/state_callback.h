// Writes trainer_state.json beside the model, in the form that Transformers' TrainerState reads.
#pragma once

#include <string>

#include "lathe/train/callback.h"

namespace lathe {

// If other ranks are lost, one rank on each machine saves the model. By this file it sees whether
// another machine has already saved the same step in a folder that they share.
class StateCallback : public Callback {
 public:
  bool SetsControl() const override { return false; }
  void OnSave(const TrainingArguments& arguments, const TrainerState& state,
              TrainerControl& control, const std::string& dir) override;
};

}  // namespace lathe
