// What a process is doing, for the others' error messages ("rank 1 has ended while training"), as
// its loops over prepared loaders and its backward passes show. It is told when it changes: a few
// times in an epoch.
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
  // Tells these groups, as long as they are there. Watches `passes`, which keep it.
  static std::shared_ptr<LoopPhase> Watch(std::vector<std::weak_ptr<ProcessGroup>> groups,
                                          LoaderPasses& passes);

  // There is a backward pass: the innermost loop trains.
  void Trains();
  // In the program's own words; its loops say nothing then.
  void Set(const std::string& phase);

 private:
  explicit LoopPhase(std::vector<std::weak_ptr<ProcessGroup>> groups)
      : groups_(std::move(groups)) {}
  void FollowPasses(const LoaderPasses& passes);  // one has begun or ended
  void TellOnce(const char* phase);
  void Tell(const std::string& phase);

  std::vector<std::weak_ptr<ProcessGroup>> groups_;
  std::vector<std::pair<std::shared_ptr<const LoaderPasses::Entry>, const char*>>
      loops_;                   // the innermost last
  const char* told_ = nullptr;  // one of loop_phase.cc's
  bool program_tells_ = false;
};

}  // namespace lathe
