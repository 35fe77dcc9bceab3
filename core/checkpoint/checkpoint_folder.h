// Checkpoints in a folder: each is a folder `checkpoint-<step>` that is there as a whole or not at
// all.
//
//   CheckpointDraft draft("out", "checkpoint-500");
//   ... write files into draft.path() ...
//   draft.Commit({.step = 500});  // syncs, writes the manifest, renames, syncs the parent
//   if (auto newest = FindNewestCheckpoint("out")) ... newest->path ...
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/manifest.h"

namespace lathe {

std::string CheckpointName(int64_t step);  // "checkpoint-500"

// A checkpoint that is being written, in a hidden folder beside its place.
class CheckpointDraft {
 public:
  // Makes the hidden folder. Throws FileError if that fails.
  CheckpointDraft(std::string parent, std::string name);
  // Removes the hidden folder unless Commit was called.
  ~CheckpointDraft();
  CheckpointDraft(const CheckpointDraft&) = delete;
  CheckpointDraft& operator=(const CheckpointDraft&) = delete;

  const std::string& path() const { return path_; }  // of the hidden folder
  std::string target() const { return parent_ + "/" + name_; }
  // Puts the checkpoint in its place, where it replaces an older one of the same name. If it
  // returns, the checkpoint survives a power cut. If it throws FileError, the older one or the new
  // one is there as a whole.
  void Commit(const CheckpointManifest& manifest);
  // Returns the error with the place of the checkpoint instead of the hidden folder.
  Error Shown(const Error& e) const;

 private:
  std::string parent_, name_, path_;
  bool committed_ = false;
};

struct FoundCheckpoint {
  std::string path;
  CheckpointManifest manifest;
};

// Throws NotFound if the path leads to no folder, or to one without a manifest. Reads no file.
void CheckIsCheckpoint(const std::string& path);

// Reads and verifies the checkpoint `path`, which may be a link to a folder. Throws if it isn't
// whole, or holds the model alone.
FoundCheckpoint OpenCheckpoint(const std::string& path);

// What lies in a folder.
struct CheckpointSearch {
  std::optional<FoundCheckpoint> newest;  // the newest one that is whole and can be resumed
  // For people: newer ones that can't be resumed, and any whose manifest can't be read, since its
  // step isn't known. Each has the reason.
  std::vector<std::string> left_out;
};
// The newest is the one of the last training, and there the one with the most steps. A link to a
// checkpoint elsewhere counts as one. A folder that doesn't exist holds none.
// Skips checkpoints for which `wanted` returns false; left_out doesn't list them.
CheckpointSearch FindNewestCheckpoint(
    const std::string& parent,
    const std::function<bool(const CheckpointManifest&)>& wanted = nullptr);

// Returns a number for a new training in this folder: above those of all manifests there.
int64_t NextRun(const std::string& parent);

// A folder whose name ends with a number, such as "checkpoint-500".
struct NumberedFolder {
  int64_t number;
  std::string path;
  bool is_link = false;  // a symbolic link, which may lead nowhere
};
// Returns the folders in `parent`, and the links, whose names are `prefix` and a number, lowest
// number first. A parent that doesn't exist holds none.
std::vector<NumberedFolder> ListNumberedFolders(const std::string& parent, std::string_view prefix);

// Removes a checkpoint, so that no half of it ever has its name. Removes only the link if it is
// one. An error leaves hidden remains, which SweepDrafts removes.
void RemoveCheckpoint(const std::string& path);

// Deletes the oldest checkpoints of the training `run` until `limit` are left, after that of step
// `newest` was saved. Some are never deleted: that one, and those that `keep` returns true for.
// Where later ones hold the model alone, so is the newest one with which a training can go on.
// Those with more steps aren't counted and stay, since they were not whole when the training went
// on from an earlier one. So do those of other trainings, and links, which people make for
// checkpoints that they keep elsewhere.
void RotateCheckpoints(const std::string& parent, int64_t run, int64_t newest, int64_t limit,
                       const std::function<bool(const std::string& path)>& keep);

// Removes hidden folders that a killed process left: all, or those of the checkpoint `name`. One
// that made room for a new checkpoint gets its name back if that has not come. Other programs may
// be writing into a folder that this one doesn't have for itself.
void SweepDrafts(const std::string& parent, const std::string& name = "");

}  // namespace lathe
