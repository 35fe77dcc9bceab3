// What the cache of models holds, and how to delete parts of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct CachedRevision {
  std::string commit;
  std::vector<std::string> refs;  // branches and tags that were this commit when last asked for
  int64_t num_files = 0;
  int64_t size = 0;  // bytes of its files; revisions may share some
};

struct CachedModel {
  std::string name;  // "owner/name"
  std::vector<CachedRevision> revisions;
  int64_t size = 0;        // bytes on the disk, of broken-off downloads, too
  int64_t incomplete = 0;  // bytes of broken-off downloads
  std::string fault = {};  // why its folder can't be read; then nothing else of it is known
};

// Lists the models in the cache, by name. A cache that is not there yet holds none. Throws
// FileError if the cache can't be read.
std::vector<CachedModel> CachedModels(const std::string& cache_dir);

// Deletes a revision: its snapshot, the blobs that no other snapshot needs, and what broken-off
// downloads left. The latter stays as long as another snapshot lacks weights. A revision is a
// branch, a tag, a commit or at least 6 of its first digits. With an empty revision, or the last
// one, deletes the model. Returns the bytes that this frees. Throws NotFound, listing what is
// there, and FileError if the model's folder can't be read or written.
int64_t DeleteFromCache(const std::string& cache_dir, const std::string& model,
                        const std::string& revision);

}  // namespace lathe
