// The cache of one model, laid out as huggingface_hub's, so that both use each other's files:
//
//   CACHE/models--OWNER--NAME/blobs/ETAG             contents
//                             refs/REVISION          the commit that a branch or tag had
//                             snapshots/COMMIT/FILE  relative links to blobs
//                             .no_exist/COMMIT/FILE  empty: the commit has no such file
//                             .former_refs/REVISION  the commits before, a line each; not of
//                                                    huggingface_hub, which passes them over
//   CACHE/.locks/models--OWNER--NAME/ETAG.lock       see file_lock.h
//
// Every change is one system call that happens as a whole or not at all, so a process may be killed
// at any time. Paths are checked (IsSafePath), so no name leads out of the model's folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

class HubCache {
 public:
  // `model` is a name as IsModelName takes it.
  HubCache(std::string cache_dir, const std::string& model);

  const std::string& root() const { return root_; }
  std::string SnapshotFolder(const std::string& commit) const;
  // Throw InvalidArgument for a path or an etag that leads out of its folder.
  std::string SnapshotPath(const std::string& commit, const std::string& file) const;
  std::string BlobPath(const std::string& etag) const;
  std::string LockPath(const std::string& etag) const;

  // Returns the commit that the branch or tag had when it was last asked for. A commit is itself.
  std::optional<std::string> FindCommit(const std::string& revision) const;
  // Returns the commits that the branch or tag had before that one, the latest first. Moves that
  // another program has noted are not known.
  std::vector<std::string> FormerCommits(const std::string& revision) const;
  bool Has(const std::string& commit, const std::string& file) const;
  bool IsKnownMissing(const std::string& commit, const std::string& file) const;
  // Returns the commits of which there is a snapshot, sorted.
  std::vector<std::string> Commits() const;
  // Returns the files of a snapshot, sorted.
  std::vector<std::string> Files(const std::string& commit) const;

  // Write a note. A cache that can't be written is left as it is. KeepCommit keeps the commit that
  // the branch had before, too.
  void KeepCommit(const std::string& revision, const std::string& commit) const;
  void KeepMissing(const std::string& commit, const std::string& file) const;

  // Makes the folders for a blob, its lock and this file. Throws FileError with a hint that names
  // what chooses the cache.
  void MakeFolders(const std::string& commit, const std::string& file) const;
  // Returns the files that broken-off downloads of the blob left, the largest first.
  std::vector<std::string> Leftovers(const std::string& etag) const;
  // Makes the snapshot's file a link to the blob. Without links moves a new blob there. A blob that
  // was there before is copied, because links of other snapshots may lead to it. Does nothing if
  // the file is there but the blob is gone. Puts no link in the place of a file.
  void Link(const std::string& commit, const std::string& file, const std::string& etag,
            bool use_symlinks, bool is_new) const;

 private:
  std::string FormerPath(const std::string& revision) const;
  std::string cache_dir_, folder_, root_;
};

// Returns FileError with a hint that says what chooses the cache.
Error CacheError(const std::string& path, int error_number);

// Creates a file with this text, by a rename. Throws FileError.
void PublishText(const std::string& path, const std::string& text);

// Returns `prefix` with eight random hexadecimal digits and `suffix`.
std::string UniqueName(const std::string& prefix, const std::string& suffix);

}  // namespace lathe
