// Where an Accelerator saves its states, and what belongs to them besides prepared objects.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lathe {

struct StateDict;  // core/checkpoint/state_dict.h

struct ProjectConfiguration {
  std::string project_dir = "";
  // SaveState() writes project_dir/checkpoints/checkpoint_0, then checkpoint_1 and so on.
  // LoadState() reads the newest one that is whole. After it, or after LoadState of one by its
  // name, SaveState() goes on with the next number that is free.
  bool automatic_checkpoint_naming = false;
  // With automatic names: how many states stay. The oldest is deleted once a new one is whole.
  std::optional<int64_t> total_limit = {};
  int64_t iteration = 0;  // the number of the next automatic name
  // Where trackers write, in a folder with the name that InitTrackers gets; empty: project_dir.
  std::string logging_dir = "";
};

// An object of the program's own whose state is saved, too.
struct CheckpointedObject {
  std::function<StateDict()> state;
  std::function<void(const StateDict&)> load;
};

// Called with the folder, before a state is written there or read from there.
using StateHook = std::function<void(const std::string& dir)>;

}  // namespace lathe
