// MakeOnce: several processes need a file in a common folder, and one of them makes it.
#pragma once

#include <functional>
#include <string>

namespace lathe {

struct MakeOnceOptions {
  // Returns true if the file at the path is there and good.
  std::function<bool()> is_there;
  // Writes the file to `draft`, an empty file in the same folder. It must keep that file's inode.
  std::function<void(const std::string& draft)> make;
  // Called before this process waits for another one that makes the file; may be empty.
  std::function<void()> on_wait = {};
};

// Makes the file at `path` unless it is there, and creates its folder. While one process makes
// it, others with the same path wait. The draft is `path` with ".lathe_draft" in place of the
// extension. It is locked while it is written, and synced and renamed when it is done. A killed
// process leaves its draft, which is unlocked then: the next process to make any file of the
// folder removes it. If `make` throws, removes the draft and throws the same. Throws FileError
// if the folder can't be written or has no locks.
void MakeOnce(const std::string& path, const MakeOnceOptions& options);

// Removes the drafts of the folder that no process writes any more.
void RemoveLeftDrafts(const std::string& folder);

}  // namespace lathe
