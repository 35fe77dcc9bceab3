#include "lathe/core/hub/cached_models.h"

#include <absl/status/status.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/hub/file_lock.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/hub/resolve_checkpoint.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "models--";

std::string ModelOf(const std::string& folder) {
  std::string name = folder.substr(std::string(kPrefix).size());
  if (const size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  return name;
}

// Calls `f` for each file and link under the folder; none if it isn't there.
template <typename F>
void ForEachFile(const fs::path& folder, const F& f) {
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end;
       at.increment(code)) {
    std::error_code gone;
    if (!at->is_directory(gone) || at->is_symlink(gone)) f(*at);
  }
}

// Returns the folders in a folder, sorted; none if it isn't there. Throws FileError if it can't be
// read.
std::vector<fs::path> FoldersIn(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    std::error_code gone;
    if (at->is_directory(gone)) paths.push_back(at->path());
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    throw FileError(folder.string(), code.value())
        .WithHint("the cache of models must be a folder that you may read; " +
                  OptionName("cache_dir") + ", HF_HUB_CACHE or HF_HOME chooses it");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

int64_t SizeOf(const fs::path& path) {
  std::error_code code;
  const uintmax_t size = fs::file_size(path, code);
  return code ? 0 : static_cast<int64_t>(size);
}

std::string ReadRef(const fs::path& path) {
  std::string commit = ReadFile(path.string());
  while (!commit.empty() && commit.back() == '\n') commit.pop_back();
  return commit;
}

CachedModel ReadModel(const fs::path& root) {
  CachedModel model{.name = ModelOf(root.filename().string()), .revisions = {}};
  for (const fs::path& snapshot : FoldersIn(root / "snapshots")) {
    CachedRevision revision{.commit = snapshot.filename().string(), .refs = {}};
    ForEachFile(snapshot, [&](const fs::directory_entry& entry) {
      ++revision.num_files;
      revision.size += SizeOf(entry.path());
      std::error_code code;
      if (!entry.is_symlink(code)) model.size += SizeOf(entry.path());  // no blob
    });
    ForEachFile(root / "refs", [&](const fs::directory_entry& entry) {
      if (entry.path().extension() == ".tmp") return;  // left by a process that was killed
      if (ReadRef(entry.path()) == revision.commit) {
        revision.refs.push_back(entry.path().lexically_relative(root / "refs").string());
      }
    });
    std::sort(revision.refs.begin(), revision.refs.end());
    model.revisions.push_back(std::move(revision));
  }
  ForEachFile(root / "blobs", [&](const fs::directory_entry& entry) {
    const int64_t size = SizeOf(entry.path());
    model.size += size;
    if (entry.path().string().ends_with(".incomplete")) model.incomplete += size;
  });
  return model;
}

void Remove(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) throw FileError(path.string(), code.value());
}

// Throws if a blob of the model is being downloaded: each download locks its own.
void CheckNotDownloading(const std::string& cache_dir, const fs::path& root,
                         const std::string& model) {
  ForEachFile(fs::path(cache_dir) / ".locks" / root.filename(),
              [&](const fs::directory_entry& entry) {
                const std::string holder = HolderOfLock(entry.path().string());
                if (holder.empty()) return;
                throw Error(absl::StatusCode::kFailedPrecondition,
                            model + ": is being downloaded by " + holder,
                            "wait until that has ended, or end it");
              });
}

// Returns true if a download of a revision other than `deleted` may be broken off: the cache lacks
// its weights.
bool MayGoOn(const std::string& cache_dir, const std::string& model, const std::string& deleted,
             const CachedModel& before) {
  HubSettings settings;
  settings.cache_dir = cache_dir;
  settings.offline = true;
  for (const CachedRevision& r : before.revisions) {
    if (r.commit == deleted) continue;
    settings.revision = r.commit;
    try {
      FetchCheckpoint(model, {.weights = true}, settings);
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

// Returns the commit of the revision. Throws NotFound if the model has no such snapshot.
std::string FindCommit(const CachedModel& model, const std::string& revision) {
  constexpr size_t kFewestDigits = 6;
  std::string there;
  std::vector<std::string> found;
  for (const CachedRevision& r : model.revisions) {
    there += (there.empty() ? "" : ", ") + r.commit;
    const bool named = std::count(r.refs.begin(), r.refs.end(), revision) > 0;
    if (named || (revision.size() >= kFewestDigits && r.commit.starts_with(revision))) {
      found.push_back(r.commit);
    }
  }
  if (found.size() == 1) return found.front();
  throw NotFound(model.name + ": the cache has " + (found.empty() ? "no" : "more than one") +
                     " revision \"" + revision + "\"; it has " + (there.empty() ? "none" : there),
                 "lathe cache lists what is there");
}

}  // namespace

std::vector<CachedModel> CachedModels(const std::string& cache_dir) {
  std::vector<CachedModel> models;
  for (const fs::path& folder : FoldersIn(cache_dir)) {
    const std::string name = folder.filename().string();
    if (!name.starts_with(kPrefix)) continue;
    try {
      models.push_back(ReadModel(folder));
    } catch (const Error& e) {  // those of other users, say
      models.push_back({.name = ModelOf(name), .revisions = {}, .fault = e.message()});
    }
  }
  return models;
}

int64_t DeleteFromCache(const std::string& cache_dir, const std::string& model,
                        const std::string& revision) {
  const fs::path root = IsModelName(model) ? HubCache(cache_dir, model).root() : "";
  std::error_code code;
  const fs::file_type type = fs::status(root, code).type();
  if (type == fs::file_type::none) throw FileError(root.string(), code.value());
  if (type != fs::file_type::directory) {
    throw NotFound(model + ": is not in the cache " + cache_dir, "lathe cache lists what is there");
  }
  const CachedModel before = ReadModel(root);
  const std::string commit = revision.empty() ? "" : FindCommit(before, revision);
  CheckNotDownloading(cache_dir, root, model);
  if (commit.empty() || before.revisions.size() == 1) {
    Remove(root);
    Remove(fs::path(cache_dir) / ".locks" / root.filename());
    return before.size;
  }
  // The notes go first: what they lead to is then whole or unknown.
  for (const CachedRevision& r : before.revisions) {
    if (r.commit != commit) continue;
    for (const std::string& ref : r.refs) Remove(root / "refs" / ref);
  }
  Remove(root / "snapshots" / commit);
  Remove(root / ".no_exist" / commit);
  std::set<fs::path> needed;
  const bool keep_incomplete = MayGoOn(cache_dir, model, commit, before);
  ForEachFile(root / "snapshots", [&](const fs::directory_entry& entry) {
    std::error_code broken;
    needed.insert(fs::read_symlink(entry.path(), broken).filename());
  });
  ForEachFile(root / "blobs", [&](const fs::directory_entry& entry) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".incomplete" ? !keep_incomplete : needed.count(name) == 0) {
      Remove(entry.path());
    }
  });
  return before.size - ReadModel(root).size;
}

}  // namespace lathe
