#include "lathe/core/checkpoint/checkpoint_folder.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kDraft = ".checkpoint.tmp.", kTrash = ".checkpoint.trash.";
// A checkpoint that makes room for a new one of its name.
constexpr std::string_view kAside = ".checkpoint.aside.";

// Returns the number at the end of a name that begins with `prefix`; -1 for other names.
int64_t NumberOf(const std::string& name, std::string_view prefix) {
  int64_t number = -1;
  if (!name.starts_with(prefix)) return -1;
  const std::string_view digits = std::string_view(name).substr(prefix.size());
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, number);
  return error == std::errc() && at == end && std::to_string(number) == digits ? number : -1;
}

std::vector<NumberedFolder> ListCheckpoints(const std::string& parent) {
  return ListNumberedFolders(parent, kPrefix);
}

std::string HiddenName(const std::string& parent, std::string_view prefix,
                       const std::string& name) {
  return parent + "/" + std::string(prefix) + name + "." + std::to_string(getpid());
}

// Gives the checkpoints back their names that a killed process had put aside for new ones, if those
// have not come. Removes the others. `only`: the one name to look for; empty: all.
void PutBack(const std::string& parent, const std::string& only = "") {
  std::vector<fs::path> asides;
  std::error_code code;
  for (fs::directory_iterator at(parent, code), end; !code && at != end; at.increment(code))
    if (at->path().filename().string().starts_with(kAside)) asides.push_back(at->path());
  for (const fs::path& aside : asides) {
    const std::string hidden = aside.filename();
    const std::string name = hidden.substr(kAside.size(), hidden.rfind('.') - kAside.size());
    if (!only.empty() && name != only) continue;
    const fs::path place = fs::path(parent) / name;
    // If it can't be renamed now, it waits for the next time.
    if (!fs::exists(fs::symlink_status(place, code)))
      rename(aside.c_str(), place.c_str());
    else
      fs::remove_all(aside, code);
  }
}

// Puts `from` in the place of `to`. Afterwards `from` is what lay there before, or nothing.
void Exchange(const std::string& from, const std::string& to) {
  const auto rename2 = [&](unsigned int flags) {
    return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0;
  };
  if (rename2(RENAME_NOREPLACE)) return;
  if (errno == EEXIST && rename2(RENAME_EXCHANGE)) return;
  if (errno != EINVAL && errno != ENOSYS) throw FileError(to, errno);
  // This file system can't exchange two folders in one step. If this process ends between the two
  // steps, PutBack goes back.
  const fs::path whole(to);
  PutBack(whole.parent_path(), whole.filename());
  const std::string aside = HiddenName(whole.parent_path(), kAside, whole.filename());
  if (rename(to.c_str(), aside.c_str()) != 0 && errno != ENOENT) throw FileError(to, errno);
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    rename(aside.c_str(), to.c_str());
    throw FileError(to, error);
  }
  rename(aside.c_str(), from.c_str());
}

// Throws if the path leads to no folder.
void CheckFolder(const std::string& path) {
  std::error_code code;
  if (fs::is_directory(path, code)) return;
  const fs::path linked = fs::read_symlink(path, code);
  if (!code) {
    throw FileError(absl::StatusCode::kNotFound, path,
                    "is a link to " + linked.string() + ", which is no folder here",
                    "is the disk mounted that holds the checkpoint?");
  }
  throw FileError(absl::StatusCode::kNotFound, path, "there is no such checkpoint",
                  "name a folder checkpoint-STEP that a training has saved");
}

}  // namespace

std::string CheckpointName(int64_t step) { return std::string(kPrefix) + std::to_string(step); }

std::vector<NumberedFolder> ListNumberedFolders(const std::string& parent,
                                                std::string_view prefix) {
  std::vector<NumberedFolder> found;
  std::error_code code;
  for (fs::directory_iterator at(parent, code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename();
    const int64_t number = NumberOf(name, prefix);
    std::error_code ignored;
    const bool is_link = at->is_symlink(ignored);
    if (number >= 0 && (is_link || at->is_directory(ignored)))
      found.push_back({number, parent + "/" + name, is_link});
  }
  std::sort(found.begin(), found.end(),
            [](const NumberedFolder& a, const NumberedFolder& b) { return a.number < b.number; });
  return found;
}

void RemoveCheckpoint(const std::string& path) {
  const fs::path whole(path);
  const std::string trash =
      HiddenName(whole.parent_path().string(), kTrash, whole.filename().string());
  std::error_code ignored;
  fs::remove_all(trash, ignored);
  if (rename(path.c_str(), trash.c_str()) == 0) fs::remove_all(trash, ignored);
}

CheckpointDraft::CheckpointDraft(std::string parent, std::string name)
    : parent_(std::move(parent)),
      name_(std::move(name)),
      path_(HiddenName(parent_, kDraft, name_)) {
  std::error_code code;
  fs::remove_all(path_, code);
  fs::create_directory(path_, code);
  if (code) throw FileError(target(), code.value());
}

CheckpointDraft::~CheckpointDraft() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(path_, ignored);
}

void CheckpointDraft::Commit(const CheckpointManifest& manifest) {
  try {
    WriteManifest(path_, manifest);
    SyncFolder(path_);
    Exchange(path_, target());
    // If the next call fails, a power cut may undo the exchange. So an older one of the same name
    // must stay in the hidden folder.
    committed_ = true;
    SyncFolder(parent_);
  } catch (const Error& e) {
    throw Shown(e);
  }
  std::error_code ignored;
  fs::remove_all(path_, ignored);  // the older one of the same name
}

Error CheckpointDraft::Shown(const Error& e) const { return WithFolder(e, path_, target()); }

void CheckIsCheckpoint(const std::string& path) {
  std::string plain = path;
  while (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  const fs::path parent = fs::path(plain).parent_path();
  PutBack(parent.empty() ? "." : parent.string(), fs::path(plain).filename());
  CheckFolder(path);
  std::error_code code;
  if (!fs::exists(path + "/" + kManifestFile, code)) {
    throw FileError(absl::StatusCode::kNotFound, path,
                    std::string("is no whole checkpoint: it has no ") + kManifestFile,
                    "name a folder checkpoint-STEP that a training has saved");
  }
}

FoundCheckpoint OpenCheckpoint(const std::string& path) {
  FoundCheckpoint found{path, {}};
  CheckIsCheckpoint(path);
  found.manifest = ReadManifest(path);
  if (!found.manifest.resumable) {
    throw FileError(absl::StatusCode::kInvalidArgument, path,
                    "holds the model alone (save_only_model)",
                    "name a checkpoint that was saved without " + OptionName("save_only_model"));
  }
  VerifyFiles(path, found.manifest);
  return found;
}

CheckpointSearch FindNewestCheckpoint(
    const std::string& parent, const std::function<bool(const CheckpointManifest&)>& wanted) {
  struct Candidate {
    int64_t run, step;  // of the manifest, as a link may have any number in its name
    bool is_folder;     // of two with the same step, a folder goes before a link
    std::string path;
  };
  PutBack(parent);
  std::vector<Candidate> candidates;
  CheckpointSearch search;
  const auto leave_out = [&](const std::string& path, const Error& e) {
    std::string reason = e.message();
    if (const auto* about = e.detail<AboutFile>(); about != nullptr) {
      const std::string file = PathWithin(path, about->path).value_or(about->path);
      reason = (file.empty() ? "" : file + ": ") + about->problem;
    }
    search.left_out.push_back(fs::path(path).filename().string() + ": " + reason);
  };
  for (const NumberedFolder& named : ListCheckpoints(parent)) {
    try {
      CheckFolder(named.path);
      const CheckpointManifest manifest = ReadManifest(named.path);
      if (wanted && !wanted(manifest)) continue;
      candidates.push_back({manifest.run, manifest.step, !named.is_link, named.path});
    } catch (const Error& e) {
      leave_out(named.path, e);
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.run, a.step, a.is_folder) > std::tie(b.run, b.step, b.is_folder);
  });
  for (const Candidate& candidate : candidates) {
    try {
      search.newest = OpenCheckpoint(candidate.path);
      break;
    } catch (const Error& e) {
      leave_out(candidate.path, e);
    }
  }
  return search;
}

int64_t NextRun(const std::string& parent) {
  int64_t last = 0;
  for (const NumberedFolder& named : ListCheckpoints(parent)) {
    try {
      last = std::max(last, ReadManifest(named.path).run);
    } catch (const Error&) {
      // A damaged one is never resumed, so its number doesn't matter.
    }
  }
  return last + 1;
}

void RotateCheckpoints(const std::string& parent, int64_t run, int64_t newest, int64_t limit,
                       const std::function<bool(const std::string&)>& keep) {
  std::vector<std::string> own;
  std::string resumable;  // the newest of these
  for (const NumberedFolder& named : ListCheckpoints(parent)) {
    if (named.is_link) continue;
    try {
      const CheckpointManifest manifest = ReadManifest(named.path);
      if (named.number > newest || manifest.run != run) continue;
      own.push_back(named.path);
      if (manifest.resumable) resumable = named.path;
    } catch (const Error&) {
      // A damaged one may not be this training's.
    }
  }
  auto left = std::ssize(own);
  for (size_t i = 0; i + 1 < own.size() && left > limit; ++i) {
    if (own[i] == resumable || keep(own[i])) continue;
    RemoveCheckpoint(own[i]);
    --left;
  }
}

void SweepDrafts(const std::string& parent, const std::string& name) {
  PutBack(parent, name);
  std::vector<fs::path> remains;
  std::error_code code;
  for (fs::directory_iterator at(parent, code), end; !code && at != end; at.increment(code)) {
    const std::string hidden = at->path().filename();
    for (const std::string_view prefix : {kDraft, kTrash}) {
      const bool is_one = name.empty() ? hidden.starts_with(prefix)
                                       : NumberOf(hidden, std::string(prefix) + name + ".") >= 0;
      if (is_one) remains.push_back(at->path());
    }
  }
  for (const fs::path& path : remains) fs::remove_all(path, code);
}

}  // namespace lathe
