#include "lathe/core/hub/resolve_checkpoint.h"

#include <absl/status/status.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/files/safe_path.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/hub/hub_snapshot.h"
#include "lathe/core/hub/transfer_progress.h"

namespace lathe {
namespace {

// Finds out which commit a revision is, and how files are got.
class Resolver {
 public:
  Resolver(std::string model, const HubSettings& settings)
      : model_(std::move(model)), settings_(settings), cache_(settings.cache_dir, model_) {
    if (!IsSafePath(settings.revision)) {
      throw InvalidArgument("\"" + settings.revision + "\" can be no revision",
                            "a revision is a branch, a tag or a whole commit");
    }
  }

  ResolvedCheckpoint Resolve(const CheckpointParts& parts) {
    const std::optional<std::string> known = cache_.FindCommit(settings_.revision);
    if (settings_.offline) return FromCache(known, parts);
    const OngoingDownload download(model_);
    HubClient client(settings_, model_);
    try {
      return Fetch(client, CommitOf(client, known, parts), known.has_value(), parts);
    } catch (const Error& e) {
      const std::optional<ResolvedCheckpoint> cached = InsteadOfHub(e, known, parts);
      if (!cached) throw;
      return *cached;
    }
  }

  ResolvedCheckpoint FetchMatching(const std::vector<std::string>& patterns);

 private:
  // Asks the Hub which commit the revision is, up to `attempts` times.
  std::string AskForCommit(HubClient& client, int attempts);
  // Does the same. `known` is what it was before. If the cache has all parts of that one, or of an
  // earlier one, asks only once.
  std::string CommitOf(HubClient& client, const std::optional<std::string>& known,
                       const CheckpointParts& parts);
  // Fetches the parts of the commit that the cache lacks.
  ResolvedCheckpoint Fetch(HubClient& client, const std::string& commit, bool is_known,
                           const CheckpointParts& parts);
  bool IsThere(const std::string& commit) const {
    return std::filesystem::is_directory(cache_.SnapshotFolder(commit));
  }
  // Returns the snapshot if the cache has all parts of it, and throws otherwise.
  ResolvedCheckpoint Whole(const std::string& commit, const CheckpointParts& parts);
  // Without one, `damage` becomes the message that names a damaged file, if there is one.
  std::optional<ResolvedCheckpoint> WholeOrNone(const std::string& commit,
                                                const CheckpointParts& parts,
                                                std::string* damage = nullptr);
  // Returns the latest whole snapshot of a commit that the branch had earlier. There is none if the
  // revision is a commit.
  std::optional<ResolvedCheckpoint> EarlierCommit(const CheckpointParts& parts);
  // Returns what the cache has of the known commit. If none is known, or it isn't whole, returns an
  // earlier commit and says so on standard error. Throws NotFound if there is neither.
  ResolvedCheckpoint FromCache(const std::optional<std::string>& known,
                               const CheckpointParts& parts);
  // Returns the end of a sentence that names what the cache has of the model; "" if nothing.
  std::string OtherCommits() const;
  // Returns what the cache has whole if the error means that more can't be fetched or can't be
  // written, and says so on standard error.
  std::optional<ResolvedCheckpoint> InsteadOfHub(const Error& e,
                                                 const std::optional<std::string>& known,
                                                 const CheckpointParts& parts);

  std::string model_;
  const HubSettings& settings_;
  HubCache cache_;
};

std::string Resolver::AskForCommit(HubClient& client, int attempts) {
  if (IsCommit(settings_.revision)) return settings_.revision;
  HubFile found = client.FindFile(settings_.revision, kHubConfigFile, attempts);
  if (!IsCommit(found.commit)) {
    found.commit = client.List(settings_.revision).commit;
    if (!IsCommit(found.commit)) {
      throw NotFound(model_ + ": has no config.json").WithDetail(HubRefused{});
    }
  }
  if (!found.exists) cache_.KeepMissing(found.commit, kHubConfigFile);
  return found.commit;
}

std::string Resolver::CommitOf(HubClient& client, const std::optional<std::string>& known,
                               const CheckpointParts& parts) {
  const bool had_none = !known && cache_.FormerCommits(settings_.revision).empty();
  if (!had_none) {
    try {
      return AskForCommit(client, 1);  // with something in the cache no wait need be long
    } catch (const Error& e) {
      if (e.detail<HubOutOfReach>() == nullptr) throw;
      if ((known && WholeOrNone(*known, parts)) || EarlierCommit(parts)) throw;
    }
  }
  return AskForCommit(client, HubClient::kAttempts);
}

ResolvedCheckpoint Resolver::Fetch(HubClient& client, const std::string& commit, bool is_known,
                                   const CheckpointParts& parts) {
  // An update that breaks off must not hide the commit that the cache has.
  if (!is_known) cache_.KeepCommit(settings_.revision, commit);
  HubSnapshot snapshot(cache_, &client, model_, commit, settings_.check_cached);
  snapshot.Need(parts);
  cache_.KeepCommit(settings_.revision, commit);
  return {snapshot.folder(), commit};
}

ResolvedCheckpoint Resolver::Whole(const std::string& commit, const CheckpointParts& parts) {
  HubSnapshot snapshot(cache_, nullptr, model_, commit, settings_.check_cached);
  snapshot.Need(parts);
  return {snapshot.folder(), commit};
}

std::optional<ResolvedCheckpoint> Resolver::WholeOrNone(const std::string& commit,
                                                        const CheckpointParts& parts,
                                                        std::string* damage) {
  if (!IsThere(commit)) return std::nullopt;
  try {
    return Whole(commit, parts);
  } catch (const Error& e) {
    if (damage != nullptr && e.code() == absl::StatusCode::kDataLoss) *damage = e.message();
    return std::nullopt;
  }
}

std::optional<ResolvedCheckpoint> Resolver::EarlierCommit(const CheckpointParts& parts) {
  if (IsCommit(settings_.revision)) return std::nullopt;
  for (const std::string& commit : cache_.FormerCommits(settings_.revision)) {
    if (auto whole = WholeOrNone(commit, parts)) return whole;
  }
  return std::nullopt;
}

ResolvedCheckpoint Resolver::FromCache(const std::optional<std::string>& known,
                                       const CheckpointParts& parts) {
  std::string problem = "the newest commit of " + model_ + " is not in the cache";
  if (known) {
    problem = "the cache has not all that is needed of " + model_ + " of commit " + *known;
    if (const auto whole = WholeOrNone(*known, parts, &problem)) return *whole;
  }
  if (const auto earlier = EarlierCommit(parts)) {
    PrintNote("note: " + problem + ", so commit " + earlier->commit + " is used");
    return *earlier;
  }
  if (known && IsThere(*known)) return Whole(*known, parts);  // throws
  const bool has_none =
      settings_.revision == "main" && !std::filesystem::exists(cache_.root() + "/snapshots");
  throw NotFound(model_ + ": no such folder, and no model of this name" +
                     (has_none ? "" : " and revision") + " is in the cache " + settings_.cache_dir +
                     OtherCommits(),
                 "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE allow no download; unset them, or give "
                 "a folder's path");
}

std::string Resolver::OtherCommits() const {
  constexpr size_t kShown = 3;
  const std::vector<std::string> commits = cache_.Commits();
  std::string text;
  for (size_t i = 0; i < std::min(commits.size(), kShown); ++i) {
    text += (i == 0 ? "; of this name it has commit " : ", and commit ") + commits[i] + " with " +
            JoinedFiles(cache_.Files(commits[i]));
  }
  return text + (commits.size() > kShown ? ", and others" : "");
}

std::optional<ResolvedCheckpoint> Resolver::InsteadOfHub(const Error& e,
                                                         const std::optional<std::string>& known,
                                                         const CheckpointParts& parts) {
  // The only files that a download reads and writes are the cache's.
  const bool excused = e.detail<HubOutOfReach>() != nullptr || e.detail<HubRefused>() != nullptr ||
                       e.detail<AboutFile>() != nullptr;
  if (!excused) return std::nullopt;
  std::string damage;
  std::optional<ResolvedCheckpoint> cached;
  if (known) cached = WholeOrNone(*known, parts, &damage);
  if (settings_.check_cached && !damage.empty() && damage != e.message()) {
    PrintNote("note: " + damage);
  }
  // A check has found damage that can't be mended. An older commit would hide it.
  const bool is_damaged =
      settings_.check_cached && known && !cached && e.detail<AboutFile>() != nullptr;
  if (is_damaged) return std::nullopt;
  if (!cached) cached = EarlierCommit(parts);
  if (!cached) return std::nullopt;
  PrintNote("note: " + e.message() + "; the cache has " + model_ + " of commit " + cached->commit +
            ", which is used" +
            (!known || cached->commit == *known ? "" : " instead of " + *known));
  return cached;
}

ResolvedCheckpoint Resolver::FetchMatching(const std::vector<std::string>& patterns) {
  const OngoingDownload download(model_);
  HubClient client(settings_, model_);
  const bool is_known = cache_.FindCommit(settings_.revision).has_value();
  const std::string commit = AskForCommit(client, HubClient::kAttempts);
  if (!is_known) cache_.KeepCommit(settings_.revision, commit);
  HubSnapshot snapshot(cache_, &client, model_, commit, settings_.check_cached);
  snapshot.FetchMatching(patterns);
  cache_.KeepCommit(settings_.revision, commit);
  return {snapshot.folder(), commit};
}

void CheckModelName(const std::string& model) {
  if (IsModelName(model)) return;
  throw InvalidArgument("\"" + model + "\" can be no model's name", "a name is owner/name");
}

}  // namespace

ResolvedCheckpoint ResolveCheckpoint(const std::string& name_or_path, const CheckpointParts& parts,
                                     const HubOptions& options) {
  if (IsLocalPath(name_or_path)) {
    std::error_code code;
    if (parts.weights && std::filesystem::is_regular_file(name_or_path, code)) {
      throw NotFound(name_or_path + ": is a file, not a model's folder",
                     "give the folder; to mean a model of this name on the Hub, move the file");
    }
    return {name_or_path, ""};
  }
  if (!IsModelName(name_or_path)) {
    throw NotFound(name_or_path + ": no such folder",
                   "give a folder's path, or the name of a model on the Hub as owner/name");
  }
  try {
    return FetchCheckpoint(name_or_path, parts, ReadHubSettings(options));
  } catch (const Error& e) {
    const HubOutOfReach* const out_of_reach = e.detail<HubOutOfReach>();
    if (out_of_reach == nullptr || out_of_reach->has_answered) throw;
    // Perhaps it is a folder's name that is misspelt. Nobody can tell without the Hub.
    throw Error(e.code(),
                name_or_path + ": no such folder here, and the Hub is out of reach: " + e.message(),
                e.hint())
        .WithDetail(HubOutOfReach{});
  }
}

ResolvedCheckpoint FetchCheckpoint(const std::string& model, const CheckpointParts& parts,
                                   const HubSettings& settings) {
  CheckModelName(model);
  return Resolver(model, settings).Resolve(parts);
}

ResolvedCheckpoint FetchMatching(const std::string& model, const std::vector<std::string>& patterns,
                                 const HubSettings& settings) {
  CheckModelName(model);
  if (settings.offline) {
    throw InvalidArgument("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE allow no download", "unset them");
  }
  return Resolver(model, settings).FetchMatching(patterns);
}

}  // namespace lathe
