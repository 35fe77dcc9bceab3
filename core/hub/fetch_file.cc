#include "lathe/core/hub/fetch_file.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/hub/blob_digest.h"
#include "lathe/core/hub/file_lock.h"
#include "lathe/core/hub/transfer_progress.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr int kMostAttempts = 6;      // without a new byte
constexpr int kMostShortAnswers = 3;  // answers without an error that end before the file does

// Returns the file's size, or -1 if there is none.
int64_t SizeOf(const std::string& path) {
  std::error_code code;
  const uintmax_t size = fs::file_size(path, code);
  return code ? -1 : static_cast<int64_t>(size);
}

Error WithCacheHint(const Error& error) {
  return error.WithHint((error.hint().empty() ? "" : error.hint() + "; ") +
                        "HF_HOME, HF_HUB_CACHE or " + OptionName("cache_dir") +
                        " choose the cache of models");
}

// The file into which a download is written. It has a name of its own. Where locks don't work,
// another process may write to any other such file, so those are left alone.
class PartialFile : public HttpSink {
 public:
  // Goes on with the first of `leftovers`, which earlier downloads of the blob left, if it is no
  // longer than the file. Removes the others.
  PartialFile(const HubCache& cache, const HubFile& file, const std::vector<std::string>& leftovers,
              TransferProgress& progress)
      : path_(UniqueName(cache.BlobPath(file.etag) + ".", ".incomplete")),
        expected_(file.size),
        progress_(progress) {
    for (const std::string& leftover : leftovers) {
      if (fd_ < 0 && SizeOf(leftover) <= expected_ &&
          rename(leftover.c_str(), path_.c_str()) == 0) {
        Open();
      } else {
        unlink(leftover.c_str());
      }
    }
    if (fd_ < 0) Open();
  }
  ~PartialFile() override {
    if (fd_ >= 0) close(fd_);
  }

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  void Begin(const HttpResponse& response) override {
    if (response.status == 206) {
      // "bytes 100-199/200"
      const std::string range = response.Header("content-range");
      int64_t first = -1;
      const size_t space = range.find(' '), dash = range.find('-');
      if (space == std::string::npos || dash == std::string::npos ||
          !absl::SimpleAtoi(range.substr(space + 1, dash - space - 1), &first) || first != size_) {
        throw DataLoss("the server sent another part of the file than it was asked for");
      }
    } else if (size_ > 0) {
      Truncate();  // the server sends the whole file
    }
  }
  void Write(const char* data, size_t size) override {
    if (size_ + static_cast<int64_t>(size) > expected_) {
      throw DataLoss("the server sends more bytes than " + std::to_string(expected_) +
                     ", which it has announced");
    }
    while (size > 0) {
      const ssize_t written = write(fd_, data, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw WithCacheHint(FileError(path_, errno));
      data += written;
      size -= static_cast<size_t>(written);
      size_ += written;
    }
    progress_.Update(size_);
  }
  void Truncate() {
    if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) throw FileError(path_, errno);
    size_ = 0;
  }
  void Remove() { unlink(path_.c_str()); }
  // Renames the file to `blob`, once its bytes are on the disk. Returns false if another process
  // has taken the file away.
  bool Publish(const std::string& blob) {
    if (fsync(fd_) != 0 && errno != EINVAL) throw WithCacheHint(FileError(path_, errno));
    if (rename(path_.c_str(), blob.c_str()) == 0) return true;
    if (errno == ENOENT) return false;
    throw FileError(blob, errno);
  }

 private:
  void Open() {
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw WithCacheHint(FileError(path_, errno));
    size_ = lseek(fd_, 0, SEEK_END);
  }

  std::string path_;
  int64_t expected_;
  TransferProgress& progress_;
  int fd_ = -1;
  int64_t size_ = 0;
};

void CheckSpace(const std::string& folder, int64_t needed) {
  std::error_code code;
  const fs::space_info space = fs::space(folder, code);
  if (code || needed <= 0 || space.available >= static_cast<uintmax_t>(needed)) return;
  throw WithCacheHint(FileError(absl::StatusCode::kResourceExhausted, folder,
                                FormatSize(needed) + " are needed but " +
                                    FormatSize(static_cast<int64_t>(space.available)) + " are free",
                                "free some space or choose another folder"));
}

bool IsLink(const std::string& path) {
  std::error_code code;
  return fs::is_symlink(path, code);
}

class Fetcher {
 public:
  Fetcher(HubClient& client, const HubCache& cache, const std::string& commit,
          const std::string& file)
      : client_(client), cache_(cache), commit_(commit), file_(file) {}

  std::string Fetch();

 private:
  // What the cache has in the file's place before anything is fetched.
  enum class Cached { kNothing, kDamagedLink, kFile };

  std::string FetchInPlaceOf(Cached cached);
  // Returns true if the cache has the file, and with the setting check_cached only if it is sound.
  // A file without a link has no hash beside it, so it is compared with what the Hub says of it.
  bool IsThere() const;
  bool LinkIfThere();
  // Fetches all bytes. Throws if that fails for good.
  void Download(PartialFile& partial);
  // Throws if the server sent another file.
  void Compare(const PartialFile& partial) const;

  HubClient& client_;
  const HubCache& cache_;
  const std::string &commit_, &file_;
  HubFile found_;
  std::string host_;  // that was asked for the bytes last, for messages
  bool found_damage_ = false;
};

bool Fetcher::IsThere() const {
  if (!cache_.Has(commit_, file_)) return false;
  if (!client_.settings().check_cached) return true;
  const std::string path = cache_.SnapshotPath(commit_, file_);
  if (IsLink(path)) return !IsDamagedBlob(path);
  return SizeOf(path) == found_.size && DigestInFormOf(found_.etag, path) == found_.etag;
}

// Returns true if the blob is in the cache. Removes a blob of another length or, with the setting
// check_cached, of another hash.
bool Fetcher::LinkIfThere() {
  const std::string blob = cache_.BlobPath(found_.etag);
  const int64_t size = SizeOf(blob);
  if (size < 0) return false;
  if (size != found_.size ||
      (client_.settings().check_cached && DigestInFormOf(found_.etag, blob) != found_.etag)) {
    unlink(blob.c_str());
    return false;
  }
  cache_.Link(commit_, file_, found_.etag, client_.settings().use_symlinks, /*is_new=*/false);
  return true;
}

void Fetcher::Download(PartialFile& partial) {
  std::string url = found_.location;
  int attempt = 0, short_answers = 0;
  while (partial.size() < found_.size) {
    const int64_t before = partial.size();
    HttpRequest request = {.url = url,
                           .headers = {"Accept-Encoding: identity"},
                           .connect_timeout = client_.settings().etag_timeout,
                           .stall_timeout = client_.settings().download_timeout};
    if (before > 0) request.headers.push_back("Range: bytes=" + std::to_string(before) + "-");
    const HttpResponse response = client_.Send(std::move(request), true, &partial);
    host_ = client_.ShownHost(response);
    const bool complete = response.failure == HttpFailure::kNone && response.status / 100 == 2;
    if (partial.size() >= found_.size) return;
    if (complete && ++short_answers == kMostShortAnswers) return;  // Compare tells
    if (partial.size() > before) attempt = 0;  // something came, so there is hope
    const bool refused = response.failure == HttpFailure::kNone && response.status == 416;
    if (refused) partial.Truncate();
    // A signed address expires; the Hub then gives a new one.
    const bool expired = response.failure == HttpFailure::kNone && response.status == 403 &&
                         url != client_.FileUrl(commit_, file_);
    const bool hopeful = complete || refused || expired || HubClient::IsTransient(response);
    if (!hopeful || ++attempt == kMostAttempts) throw client_.ErrorOf(response, commit_, file_);
    client_.WaitBefore(attempt, kMostAttempts, response);
    url = client_.FileUrl(commit_, file_);
  }
}

void Fetcher::Compare(const PartialFile& partial) const {
  const std::string what = client_.model() + ": " + file_ + " from " + host_;
  constexpr char kHint[] = "try again; if it happens again, the server or a proxy is at fault";
  if (partial.size() != found_.size) {
    throw DataLoss(what + " should have " + std::to_string(found_.size) + " bytes but has " +
                       std::to_string(partial.size()),
                   kHint);
  }
  const std::string digest = DigestInFormOf(found_.etag, partial.path());
  if (digest == found_.etag) return;
  throw DataLoss(what + " is damaged: its hash is " + digest + " but must be " + found_.etag,
                 kHint);
}

std::string Fetcher::Fetch() {
  const std::string path = cache_.SnapshotPath(commit_, file_);
  if (!cache_.Has(commit_, file_)) return FetchInPlaceOf(Cached::kNothing);
  if (!client_.settings().check_cached) return path;
  if (IsLink(path)) return IsDamagedBlob(path) ? FetchInPlaceOf(Cached::kDamagedLink) : path;
  try {
    return FetchInPlaceOf(Cached::kFile);
  } catch (const Error& e) {
    if (!found_damage_ || !cache_.Has(commit_, file_)) throw;
    // Without its details the error keeps callers from using what the cache has.
    throw Error(e.code(), e.message(), e.hint());
  }
}

std::string Fetcher::FetchInPlaceOf(Cached cached) {
  const HubSettings& settings = client_.settings();
  // What is there can be used without the Hub.
  found_ = client_.FindFile(commit_, file_, cached == Cached::kFile ? 1 : kMostAttempts);
  host_ = client_.shown_endpoint();
  const std::string path = cache_.SnapshotPath(commit_, file_);
  if (cached == Cached::kFile && (!found_.exists || IsThere())) return path;
  if (cached != Cached::kNothing) {
    found_damage_ = true;
    PrintNote("note: " + client_.model() + ": " + file_ +
              " in the cache is damaged and is fetched again");
  }
  if (!found_.exists) {
    throw NotFound(client_.model() + " at " + client_.shown_endpoint() + ": has no " + file_ +
                   " in revision \"" + commit_ + "\"")
        .WithDetail(HubRefused{});
  }
  cache_.MakeFolders(commit_, file_);
  const std::string blob = cache_.BlobPath(found_.etag);
  const auto progress_of_holder = [&] {
    long long sum = 0;
    for (const std::string& leftover : cache_.Leftovers(found_.etag)) sum += SizeOf(leftover);
    return sum;
  };
  const FileLock lock(cache_.LockPath(found_.etag), settings.lock_timeout,
                      settings.show_waits ? file_ + " of " + client_.model() : "",
                      progress_of_holder);
  // Without links there is no blob once another process has fetched the file.
  if (IsThere()) return path;
  if (cached == Cached::kFile) unlink(path.c_str());  // a link would not take its place
  const bool is_new = SizeOf(blob) < 0;               // a damaged blob may have links, too
  if (LinkIfThere()) return path;
  for (bool again = false;; again = true) {
    std::vector<std::string> leftovers;
    if (lock.is_held()) leftovers = cache_.Leftovers(found_.etag);
    const int64_t had = leftovers.empty() ? 0 : std::max<int64_t>(SizeOf(leftovers[0]), 0);
    CheckSpace(fs::path(blob).parent_path().string(), found_.size - had);
    TransferProgress progress(file_, had <= found_.size ? had : 0, found_.size,
                              settings.show_progress);
    PartialFile partial(cache_, found_, leftovers, progress);
    try {
      Download(partial);
      Compare(partial);
    } catch (const Error& e) {
      // Without a lock nobody would go on with it.
      if (e.code() != absl::StatusCode::kDataLoss && !lock.is_held()) partial.Remove();
      if (e.code() != absl::StatusCode::kDataLoss) throw;
      partial.Remove();  // so that nothing of it comes back
      if (again) throw;
      continue;
    }
    if (!partial.Publish(blob)) {
      if (LinkIfThere()) return path;
      throw FileError(partial.path(), ENOENT);
    }
    progress.Finish();
    cache_.Link(commit_, file_, found_.etag, settings.use_symlinks, is_new);
    return path;
  }
}

}  // namespace

std::string FetchFile(HubClient& client, const HubCache& cache, const std::string& commit,
                      const std::string& file) {
  return Fetcher(client, cache, commit, file).Fetch();
}

}  // namespace lathe
