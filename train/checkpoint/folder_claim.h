// A claim keeps two trainings from writing to one output folder at the same time. Their checkpoints
// would replace each other, and the model could be that of either.
//
//   CheckNotClaimed("out");    // before the folder is looked at
//   FolderClaim claim("out");  // while the training may write there
//
// It is an advisory lock (flock) on the hidden file kFolderLock in the folder, which holds the
// process and its machine, for people. The system frees it as soon as the process has ended,
// however that ends. Where files can't be locked, a claim does nothing.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace lathe {

// Returns how long to wait for a process that may be about to end. It is 3 s, or 30 s if the
// launcher has started this job again: a killed process may need so long to end.
std::chrono::milliseconds ClaimPatience();

class FolderClaim {
 public:
  // Claims the folder for this process. It, and processes that it forks meanwhile, may claim the
  // folder again. The last claim to go removes the file. Forked processes don't keep the claim if
  // this one ends. Throws UsageError, naming the other process, if that still has the folder after
  // `patience`, or when a signal asks this one to stop.
  explicit FolderClaim(const std::string& dir,
                       std::chrono::milliseconds patience = ClaimPatience());

 private:
  std::shared_ptr<const void> claim_;
};

// Throws as FolderClaim does, but claims and changes nothing. The folder need not exist.
void CheckNotClaimed(const std::string& dir, std::chrono::milliseconds patience = ClaimPatience());

}  // namespace lathe
