#include "lathe/core/hub/hub_snapshot.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/blob_digest.h"
#include "lathe/core/hub/fetch_file.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/core/weight_files/shard_index.h"

namespace lathe {
namespace {

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

// Returns the shards that the index of this kind of weights names. An index that can't be read
// makes its commit incomplete, unless only the cache's copy is damaged.
std::set<std::string> ShardsOf(const std::string& index, const std::string& weights) {
  std::set<std::string> shards;
  try {
    for (const auto& [tensor, shard] :
         ReadShardIndex(index, std::filesystem::path(weights).extension())) {
      shards.insert(shard);
    }
  } catch (const Error& e) {
    if (IsDamagedBlob(index)) throw;
    throw e.WithDetail(HubRefused{});
  }
  return shards;
}

// Returns the pattern that means all files below a folder for a folder's name with a slash.
std::string AsPattern(const std::string& pattern) {
  return pattern.ends_with('/') ? pattern + "*" : pattern;
}

}  // namespace

std::string JoinedFiles(const std::vector<std::string>& files) {
  constexpr size_t kShown = 12;
  std::string text;
  for (size_t i = 0; i < std::min(files.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + files[i];
  }
  if (files.size() > kShown) text += ", ...";
  return text.empty() ? "nothing" : text;
}

HubSnapshot::HubSnapshot(const HubCache& cache, HubClient* client, std::string model,
                         std::string commit, bool check_cached)
    : cache_(cache),
      client_(client),
      model_(std::move(model)),
      commit_(std::move(commit)),
      check_cached_(check_cached) {}

const HubListing& HubSnapshot::Listing() {
  if (!listing_) listing_ = client_->List(commit_);
  return *listing_;
}

std::string HubSnapshot::NoList() {
  return client_->shown_endpoint() + " gives no list of its files (status " +
         std::to_string(Listing().status) + ")";
}

std::string HubSnapshot::Contents() {
  if (client_ == nullptr) return "; it has " + JoinedFiles(cache_.Files(commit_));
  return Listing().is_given ? "; it has " + JoinedFiles(Listing().files) : ", and " + NoList();
}

bool HubSnapshot::Exists(const std::string& file) {
  if (cache_.Has(commit_, file)) return true;
  if (client_ == nullptr || cache_.IsKnownMissing(commit_, file)) return false;
  const HubListing& listing = Listing();
  HubFile found;
  found.commit = commit_;
  if (listing.is_given) {
    found.exists = std::binary_search(listing.files.begin(), listing.files.end(), file);
  } else {
    found = client_->FindFile(commit_, file, HubClient::kAttempts);
  }
  // A 404 without a commit may come from any server, so the next start asks again.
  if (!found.exists && IsCommit(found.commit)) cache_.KeepMissing(commit_, file);
  return found.exists;
}

void HubSnapshot::Fetch(const std::string& file) {
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

void HubSnapshot::NeedConfig() {
  // Without a client, Fetch says that the cache lacks the file, which the model may have.
  const bool may_exist = client_ == nullptr && !cache_.IsKnownMissing(commit_, kHubConfigFile);
  if (may_exist || Exists(kHubConfigFile)) return Fetch(kHubConfigFile);
  throw NotFound(model_ + ": has no config.json" + Contents(),
                 "name a model that Transformers can read")
      .WithDetail(HubRefused{});
}

void HubSnapshot::NeedTokenizer() {
  FetchIfThere(kHubConfigFile);  // its model_type may decide the tokenizer's class
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

void HubSnapshot::NeedWeights() {
  for (const std::string name : kWeights) {
    if (Exists(name)) return Fetch(name);
    const std::string index = name + kIndexEnding;
    if (!Exists(index)) continue;
    Fetch(index);
    for (const std::string& shard : ShardsOf(cache_.SnapshotPath(commit_, index), name)) {
      Fetch(shard);
    }
    return;
  }
  throw NotFound(model_ + ": has no weights (model.safetensors, pytorch_model.bin or tf_model.h5)" +
                     (client_ == nullptr ? " in the cache" : "") + Contents(),
                 client_ == nullptr ? "without HF_HUB_OFFLINE and with a network they are fetched"
                                    : "name a model with weights")
      .WithDetail(HubRefused{});
}

void HubSnapshot::Need(const CheckpointParts& parts) {
  if (parts.config) NeedConfig();
  if (parts.tokenizer) NeedTokenizer();
  if (parts.columns) FetchIfThere(kColumns);
  if (parts.weights) NeedWeights();
}

void HubSnapshot::FetchMatching(const std::vector<std::string>& patterns) {
  const HubListing& listing = Listing();
  if (!listing.is_given) {
    throw NotFound(model_ + ": " + NoList() + ", so patterns can't be compared with it",
                   "leave out " + OptionName("include") + "; then each needed file is asked for");
  }
  bool any = false;
  for (const std::string& file : listing.files) {
    const bool wanted = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
      return fnmatch(AsPattern(p).c_str(), file.c_str(), 0) == 0;
    });
    if (!wanted) continue;
    Fetch(file);
    any = true;
  }
  if (!any) {
    throw NotFound(model_ + ": no file matches; it has " + JoinedFiles(listing.files),
                   "correct " + OptionName("include"));
  }
}

}  // namespace lathe
