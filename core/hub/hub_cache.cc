#include "lathe/core/hub/hub_cache.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/files/safe_path.h"
#include "lathe/core/hub/hub_names.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kCacheTag[] =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder is a cache of models from a Hub.\n"
    "# For information about cache directory tags, see https://bford.info/cachedir/\n";

std::string Checked(const std::string& path, const char* what) {
  if (IsSafePath(path)) return path;
  throw InvalidArgument(std::string("the ") + what + " \"" + path + "\" leads out of its folder",
                        "the Hub's answer is wrong; do not use this model");
}

void MakeFolder(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code) throw CacheError(path, code.value());
}

std::string Folder(const std::string& path) { return fs::path(path).parent_path().string(); }

// Returns the text of a file in refs/ without white space at its end.
std::string ReadRef(const std::string& path) {
  std::string commit = ReadFile(path);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  return commit;
}

}  // namespace

Error CacheError(const std::string& path, int error_number) {
  return FileError(path, error_number)
      .WithHint(
          "the cache of models must be a folder that you may write; choose another with HF_HOME, "
          "HF_HUB_CACHE or " +
          OptionName("cache_dir"));
}

std::string UniqueName(const std::string& prefix, const std::string& suffix) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", std::random_device()());
  return prefix + digits + suffix;
}

void PublishText(const std::string& path, const std::string& text) {
  const std::string temporary = UniqueName(path + ".", ".tmp");
  try {
    FileWriter writer(temporary, path);
    writer.Write(text.data(), text.size());
    writer.Close();
    if (rename(temporary.c_str(), path.c_str()) != 0) throw FileError(path, errno);
  } catch (const Error&) {
    unlink(temporary.c_str());
    throw;
  }
}

HubCache::HubCache(std::string cache_dir, const std::string& model)
    : cache_dir_(std::move(cache_dir)), folder_("models--" + model) {
  if (const size_t slash = folder_.find('/'); slash != std::string::npos) {
    folder_.replace(slash, 1, "--");
  }
  root_ = cache_dir_ + "/" + Checked(folder_, "model");
}

std::string HubCache::SnapshotFolder(const std::string& commit) const {
  return root_ + "/snapshots/" + Checked(commit, "commit");
}

std::string HubCache::SnapshotPath(const std::string& commit, const std::string& file) const {
  return SnapshotFolder(commit) + "/" + Checked(file, "file");
}

std::string HubCache::BlobPath(const std::string& etag) const {
  if (etag.find('/') != std::string::npos) Checked("..", "etag");
  return root_ + "/blobs/" + Checked(etag, "etag");
}

std::string HubCache::LockPath(const std::string& etag) const {
  BlobPath(etag);  // checks it
  return cache_dir_ + "/.locks/" + folder_ + "/" + etag + ".lock";
}

std::string HubCache::FormerPath(const std::string& revision) const {
  return root_ + "/.former_refs/" + Checked(revision, "revision");
}

std::optional<std::string> HubCache::FindCommit(const std::string& revision) const {
  if (IsCommit(revision)) return revision;
  const std::string path = root_ + "/refs/" + Checked(revision, "revision");
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return std::nullopt;
  const std::string commit = ReadRef(path);
  if (!IsCommit(commit)) return std::nullopt;
  return commit;
}

std::vector<std::string> HubCache::FormerCommits(const std::string& revision) const {
  std::vector<std::string> commits;
  std::error_code code;
  const std::string path = FormerPath(revision);
  if (!fs::is_regular_file(path, code)) return commits;
  std::istringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) {
    if (IsCommit(line)) commits.push_back(line);
  }
  std::reverse(commits.begin(), commits.end());
  return commits;
}

bool HubCache::Has(const std::string& commit, const std::string& file) const {
  std::error_code code;
  return fs::is_regular_file(SnapshotPath(commit, file), code);
}

bool HubCache::IsKnownMissing(const std::string& commit, const std::string& file) const {
  std::error_code code;
  return fs::exists(root_ + "/.no_exist/" + Checked(commit, "commit") + "/" + Checked(file, "file"),
                    code);
}

std::vector<std::string> HubCache::Commits() const {
  std::vector<std::string> commits;
  std::error_code code;
  for (fs::directory_iterator at(root_ + "/snapshots", code), end; !code && at != end;
       at.increment(code)) {
    const std::string name = at->path().filename().string();
    if (IsCommit(name)) commits.push_back(name);
  }
  std::sort(commits.begin(), commits.end());
  return commits;
}

std::vector<std::string> HubCache::Files(const std::string& commit) const {
  const fs::path folder = SnapshotFolder(commit);
  std::vector<std::string> files;
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end;
       at.increment(code)) {
    if (at->is_regular_file(code)) {
      files.push_back(at->path().lexically_relative(folder).generic_string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void HubCache::KeepCommit(const std::string& revision, const std::string& commit) const {
  const std::optional<std::string> before = FindCommit(revision);
  if (revision == commit || before == commit) return;
  const std::string path = root_ + "/refs/" + Checked(revision, "revision");
  try {
    if (before) {
      std::string former;
      for (const std::string& each : FormerCommits(revision)) {
        if (each != *before) former = each + "\n" + former;
      }
      MakeFolder(Folder(FormerPath(revision)));
      PublishText(FormerPath(revision), former + *before + "\n");
    }
    MakeFolder(Folder(path));
    PublishText(path, commit);
  } catch (const Error&) {
    // The files can be used all the same. Only a later run without a network would miss the note.
  }
}

void HubCache::KeepMissing(const std::string& commit, const std::string& file) const {
  const std::string path =
      root_ + "/.no_exist/" + Checked(commit, "commit") + "/" + Checked(file, "file");
  std::error_code code;
  if (fs::exists(path, code)) return;
  fs::create_directories(Folder(path), code);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) close(fd);
}

void HubCache::MakeFolders(const std::string& commit, const std::string& file) const {
  MakeFolder(root_ + "/blobs");
  MakeFolder(cache_dir_ + "/.locks/" + folder_);
  MakeFolder(Folder(SnapshotPath(commit, file)));
  const std::string tag = cache_dir_ + "/CACHEDIR.TAG";
  std::error_code code;
  if (!fs::exists(tag, code)) PublishText(tag, kCacheTag);
}

std::vector<std::string> HubCache::Leftovers(const std::string& etag) const {
  std::vector<std::pair<uintmax_t, std::string>> found;
  std::error_code code;
  for (fs::directory_iterator at(root_ + "/blobs", code), end; !code && at != end;
       at.increment(code)) {
    const std::string name = at->path().filename().string();
    // "ETAG.incomplete" is an older client's.
    if (!name.starts_with(etag + ".") || !name.ends_with(".incomplete")) continue;
    std::error_code gone;
    const uintmax_t size = at->file_size(gone);
    if (!gone) found.emplace_back(size, at->path().string());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [size, path] : found) paths.push_back(std::move(path));
  return paths;
}

void HubCache::Link(const std::string& commit, const std::string& file, const std::string& etag,
                    bool use_symlinks, bool is_new) const {
  const std::string path = SnapshotPath(commit, file), blob = BlobPath(etag);
  if (use_symlinks) {
    const std::string target = fs::path(blob).lexically_relative(Folder(path)).string();
    if (symlink(target.c_str(), path.c_str()) == 0) return;
    if (errno == EEXIST) {
      std::error_code code;
      if (fs::read_symlink(path, code) == target) return;
      // A process without links may have put its only copy there.
      if (fs::is_regular_file(fs::symlink_status(path, code))) return;
      unlink(path.c_str());  // it leads elsewhere
      if (symlink(target.c_str(), path.c_str()) == 0) return;
    }
    if (errno != EPERM && errno != ENOSYS && errno != EOPNOTSUPP) throw FileError(path, errno);
  }
  // Where no locks work, another process may move the blob there first.
  const auto is_moved = [&](int error_number) {
    std::error_code code;
    return error_number == ENOENT && fs::is_regular_file(path, code);
  };
  if (is_new) {
    const int failure = rename(blob.c_str(), path.c_str()) == 0 ? 0 : errno;
    if (failure != 0 && !is_moved(failure)) throw FileError(path, failure);
    return;
  }
  // Named as a download is, so that what a killed process leaves is removed like one.
  const std::string copy = UniqueName(blob + ".", ".incomplete");
  try {
    std::error_code code;
    fs::copy_file(blob, copy, code);
    if (is_moved(code.value())) return;
    if (code) throw CacheError(path, code.value());
    SyncFile(copy);
    if (rename(copy.c_str(), path.c_str()) != 0) throw FileError(path, errno);
  } catch (const Error&) {
    unlink(copy.c_str());
    throw;
  }
}

}  // namespace lathe
