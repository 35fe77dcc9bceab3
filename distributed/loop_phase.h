// LoopPhase tells the other ranks what this process is doing, for their error messages ("rank 1 has
// ended while training"). It follows the process's loops over prepared loaders and its backward
// passes. It sends a phase when it changes, a few times in an epoch.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/distributed/groups/process_group.h"

namespace lathe {

class LoopPhase {
 public:
  // Returns an object that sends the phase to those of `groups` that still exist. `passes` own the
  // object, which follows them.
  static std::shared_ptr<LoopPhase> Watch(std::vector<std::weak_ptr<ProcessGroup>> groups,
                                          LoaderPasses& passes);

  // Call it for each backward pass: the innermost loop then counts as training.
  void OnBackward();
  // States the phase in the program's own words. Loops no longer change it then.
  void Set(const std::string& phase);

 private:
  explicit LoopPhase(std::vector<std::weak_ptr<ProcessGroup>> groups)
      : groups_(std::move(groups)) {}
  void FollowPasses(const LoaderPasses& passes);  // called when a pass begins or ends
  void SendIfNew(const char* phase);
  void Send(const std::string& phase);

  std::vector<std::weak_ptr<ProcessGroup>> groups_;
  std::vector<std::pair<std::shared_ptr<const LoaderPasses::Entry>, const char*>>
      loops_;                   // the innermost last
  const char* sent_ = nullptr;  // the last of loop_phase.cc's phases that was sent
  bool set_by_program_ = false;
};

}  // namespace lathe
