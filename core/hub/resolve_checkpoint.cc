#include "lathe/core/hub/resolve_checkpoint.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/files/safe_path.h"
#include "lathe/core/hub/blob_digest.h"
#include "lathe/core/hub/fetch_file.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/hub/transfer_progress.h"
#include "lathe/core/weight_files/shard_index.h"

namespace lathe {
namespace {

constexpr char kConfig[] = "config.json";
// What a tokenizer is read from: the first of these that is there needs no other vocabulary.
constexpr char kTokenizer[] = "tokenizer.json";
constexpr std::array kTokenizerNotes = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json"};
constexpr std::array kVocabularies = {
    "vocab.txt", "vocab.json",         "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "spm.model", "sentencepiece.model"};
// The columns that a training with finetune has read (train/rows/trained_columns.h).
constexpr char kColumns[] = "data_columns.json";
constexpr std::array kWeights = {"model.safetensors", "pytorch_model.bin", "tf_model.h5"};
constexpr char kIndexEnding[] = ".index.json";
constexpr int kAttempts = 6;

std::string Joined(const std::vector<std::string>& files) {
  constexpr size_t kShown = 12;
  std::string text;
  for (size_t i = 0; i < std::min(files.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + files[i];
  }
  if (files.size() > kShown) text += ", ...";
  return text.empty() ? "nothing" : text;
}

// One commit of one model. Files that the cache lacks are fetched, unless only it may be used.
class Snapshot {
 public:
  // `client` is null if no request may be made. With `check_cached` the files that the cache has
  // must be sound.
  Snapshot(const HubCache& cache, HubClient* client, std::string model, std::string commit,
           bool check_cached)
      : cache_(cache),
        client_(client),
        model_(std::move(model)),
        commit_(std::move(commit)),
        check_cached_(check_cached) {}

  std::string folder() const { return cache_.SnapshotFolder(commit_); }
  // Makes the files of these parts present. Throws NotFound if one is needed and not there.
  void Need(const CheckpointParts& parts);
  // Returns the Hub's list of the commit's files. There is none if the server gives none, or if no
  // request may be made.
  const std::optional<HubListing>& Listing();

 private:
  bool Exists(const std::string& file);
  void Fetch(const std::string& file);
  void FetchIfThere(const std::string& file) {
    if (Exists(file)) Fetch(file);
  }
  void NeedConfig();
  void NeedTokenizer();
  void NeedWeights();
  // Returns the end of a sentence that says which file is not there.
  std::string Contents();

  const HubCache& cache_;
  HubClient* client_;
  std::string model_, commit_;
  bool check_cached_;
  bool asked_ = false;
  std::optional<HubListing> listing_;
};

const std::optional<HubListing>& Snapshot::Listing() {
  if (!asked_ && client_ != nullptr) {
    listing_ = client_->List(commit_);
    asked_ = true;
  }
  return listing_;
}

std::string Snapshot::Contents() {
  if (client_ == nullptr) return "; it has " + Joined(cache_.Files(commit_));
  return Listing() ? "; it has " + Joined(Listing()->files)
                   : ", and the server gives no list of its files";
}

bool Snapshot::Exists(const std::string& file) {
  if (cache_.Has(commit_, file)) return true;
  if (client_ == nullptr || cache_.IsKnownMissing(commit_, file)) return false;
  const bool exists =
      Listing() ? std::binary_search(Listing()->files.begin(), Listing()->files.end(), file)
                : client_->FindFile(commit_, file, kAttempts).exists;
  if (!exists) cache_.KeepMissing(commit_, file);
  return exists;
}

void Snapshot::Fetch(const std::string& file) {
  if (client_ != nullptr) {
    FetchFile(*client_, cache_, commit_, file);
  } else if (!cache_.Has(commit_, file)) {
    throw NotFound(model_ + ": " + file + " is not in the cache " + cache_.root(),
                   "without HF_HUB_OFFLINE and with a network it is fetched");
  } else if (check_cached_ && IsDamagedBlob(cache_.SnapshotPath(commit_, file))) {
    throw DataLoss(cache_.SnapshotPath(commit_, file) + ": is damaged: its hash is not its name",
                   "without HF_HUB_OFFLINE and with a network it is fetched again");
  }
}

void Snapshot::NeedConfig() {
  if (Exists(kConfig)) return Fetch(kConfig);
  throw NotFound(model_ + ": has no config.json" + Contents(),
                 "name a model that Transformers can read");
}

void Snapshot::NeedTokenizer() {
  FetchIfThere(kConfig);  // its model_type may decide the tokenizer's class
  for (const char* file : kTokenizerNotes) FetchIfThere(file);
  if (Exists(kTokenizer)) return Fetch(kTokenizer);
  bool any = false, all_known = cache_.IsKnownMissing(commit_, kTokenizer);
  for (const char* file : kVocabularies) {
    all_known = all_known && cache_.IsKnownMissing(commit_, file);
    if (!Exists(file)) continue;
    Fetch(file);
    any = true;
  }
  // A model without a tokenizer has none in the cache either.
  if (!any && !all_known && client_ == nullptr) {
    throw NotFound(model_ + ": the tokenizer is not in the cache " + cache_.root(),
                   "without HF_HUB_OFFLINE and with a network it is fetched");
  }
}

void Snapshot::NeedWeights() {
  for (const std::string name : kWeights) {
    if (Exists(name)) return Fetch(name);
    const std::string index = name + kIndexEnding;
    if (!Exists(index)) continue;
    Fetch(index);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : ReadShardIndex(cache_.SnapshotPath(commit_, index),
                                                      std::filesystem::path(name).extension())) {
      shards.insert(shard);
    }
    for (const std::string& shard : shards) Fetch(shard);
    return;
  }
  throw NotFound(model_ + ": has no weights (model.safetensors, pytorch_model.bin or tf_model.h5)" +
                     (client_ == nullptr ? " in the cache" : "") + Contents(),
                 client_ == nullptr ? "without HF_HUB_OFFLINE and with a network they are fetched"
                                    : "name a model with weights");
}

void Snapshot::Need(const CheckpointParts& parts) {
  if (parts.config) NeedConfig();
  if (parts.tokenizer) NeedTokenizer();
  if (parts.columns) FetchIfThere(kColumns);
  if (parts.weights) NeedWeights();
}

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
  // Asks the Hub which commit the revision is. `known` is what it was before. If the cache has all
  // parts of that one, asks only once.
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
  std::optional<ResolvedCheckpoint> WholeOrNone(const std::string& commit,
                                                const CheckpointParts& parts);
  // Returns the latest whole snapshot of a commit that the branch had earlier. There is none if the
  // revision is a commit.
  std::optional<ResolvedCheckpoint> EarlierCommit(const CheckpointParts& parts);
  // Returns what the cache has of the known commit. If that isn't whole, returns an earlier commit
  // and says so on standard error. Throws NotFound if there is neither.
  ResolvedCheckpoint FromCache(const std::optional<std::string>& known,
                               const CheckpointParts& parts);
  // Returns what the cache has whole if the error means that more can't be fetched or can't be
  // written, and says so on standard error.
  std::optional<ResolvedCheckpoint> InsteadOfHub(const Error& e,
                                                 const std::optional<std::string>& known,
                                                 const CheckpointParts& parts);

  std::string model_;
  const HubSettings& settings_;
  HubCache cache_;
};

std::string Resolver::CommitOf(HubClient& client, const std::optional<std::string>& known,
                               const CheckpointParts& parts) {
  if (IsCommit(settings_.revision)) return settings_.revision;
  const auto ask = [&](int attempts) {
    HubFile found = client.FindFile(settings_.revision, kConfig, attempts);
    if (!IsCommit(found.commit)) {
      const std::optional<HubListing> listing = client.List(settings_.revision);
      found.commit = listing ? listing->commit : "";
      if (!IsCommit(found.commit)) throw NotFound(model_ + ": has no config.json");
    }
    if (!found.exists) cache_.KeepMissing(found.commit, kConfig);
    return found.commit;
  };
  if (!known) return ask(kAttempts);
  try {
    return ask(1);  // with something in the cache there is no reason to wait long
  } catch (const Error& e) {
    if (e.detail<HubOutOfReach>() == nullptr || WholeOrNone(*known, parts)) throw;
  }
  return ask(kAttempts);
}

ResolvedCheckpoint Resolver::Fetch(HubClient& client, const std::string& commit, bool is_known,
                                   const CheckpointParts& parts) {
  // An update that breaks off must not hide the commit that the cache has.
  if (!is_known) cache_.KeepCommit(settings_.revision, commit);
  Snapshot snapshot(cache_, &client, model_, commit, settings_.check_cached);
  snapshot.Need(parts);
  cache_.KeepCommit(settings_.revision, commit);
  return {snapshot.folder(), commit};
}

ResolvedCheckpoint Resolver::Whole(const std::string& commit, const CheckpointParts& parts) {
  Snapshot snapshot(cache_, nullptr, model_, commit, settings_.check_cached);
  snapshot.Need(parts);
  return {snapshot.folder(), commit};
}

std::optional<ResolvedCheckpoint> Resolver::WholeOrNone(const std::string& commit,
                                                        const CheckpointParts& parts) {
  if (!IsThere(commit)) return std::nullopt;
  try {
    return Whole(commit, parts);
  } catch (const Error&) {
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
  if (known) {
    if (const auto whole = WholeOrNone(*known, parts)) return *whole;
    if (const auto earlier = EarlierCommit(parts)) {
      PrintNote("note: the cache has not all that is needed of " + model_ + " of commit " + *known +
                ", so commit " + earlier->commit + " is used");
      return *earlier;
    }
    if (IsThere(*known)) return Whole(*known, parts);  // throws
  }
  throw NotFound(model_ + ": no such folder, and no model of this name" +
                     (settings_.revision == "main" ? "" : " and revision") + " is in the cache " +
                     settings_.cache_dir,
                 "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE allow no download; unset them, or give "
                 "a folder's path");
}

std::optional<ResolvedCheckpoint> Resolver::InsteadOfHub(const Error& e,
                                                         const std::optional<std::string>& known,
                                                         const CheckpointParts& parts) {
  // The only files that a download reads and writes are the cache's.
  const bool excused = e.detail<HubOutOfReach>() != nullptr || e.detail<HubRefused>() != nullptr ||
                       e.detail<AboutFile>() != nullptr;
  if (!excused || !known) return std::nullopt;
  std::optional<ResolvedCheckpoint> cached = WholeOrNone(*known, parts);
  // A check has found damage that can't be mended. An older commit would hide it.
  const bool is_damaged = settings_.check_cached && !cached && e.detail<AboutFile>() != nullptr;
  if (is_damaged) return std::nullopt;
  if (!cached) cached = EarlierCommit(parts);
  if (!cached) return std::nullopt;
  PrintNote("note: " + e.message() + "; the cache has " + model_ + " of commit " + cached->commit +
            ", which is used" + (cached->commit == *known ? "" : " instead of " + *known));
  return cached;
}

ResolvedCheckpoint Resolver::FetchMatching(const std::vector<std::string>& patterns) {
  const OngoingDownload download(model_);
  HubClient client(settings_, model_);
  const bool is_known = cache_.FindCommit(settings_.revision).has_value();
  const std::string commit = CommitOf(client, std::nullopt, {});
  if (!is_known) cache_.KeepCommit(settings_.revision, commit);
  Snapshot snapshot(cache_, &client, model_, commit, settings_.check_cached);
  const std::optional<HubListing>& listing = snapshot.Listing();
  if (!listing) {
    throw NotFound(model_ + " at " + client.shown_endpoint() +
                       ": the server gives no list of files, so patterns can't be compared with it",
                   "leave out " + OptionName("include") + "; then each needed file is asked for");
  }
  bool any = false;
  for (const std::string& file : listing->files) {
    const bool wanted = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
      return fnmatch(p.c_str(), file.c_str(), 0) == 0;
    });
    if (!wanted) continue;
    FetchFile(client, cache_, commit, file);
    any = true;
  }
  if (!any) {
    throw NotFound(model_ + ": no file matches; it has " + Joined(listing->files),
                   "correct " + OptionName("include"));
  }
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
    if (e.detail<HubOutOfReach>() == nullptr) throw;
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
