// One commit of one model in the cache, and which files of it are needed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"
#include "lathe/core/hub/resolve_checkpoint.h"

namespace lathe {

inline constexpr char kHubConfigFile[] = "config.json";

// Returns the first of the files for a message, as "a, b, ..."; "nothing" if there is none.
std::string JoinedFiles(const std::vector<std::string>& files);

// Files that the cache lacks are fetched, unless only the cache may be used.
class HubSnapshot {
 public:
  // `client` is null if no request may be made. With `check_cached` the files that the cache has
  // must be sound. The cache and the client must outlive this object.
  HubSnapshot(const HubCache& cache, HubClient* client, std::string model, std::string commit,
              bool check_cached);

  std::string folder() const { return cache_.SnapshotFolder(commit_); }
  // Makes the files of these parts present. Throws NotFound if one is needed and not there.
  void Need(const CheckpointParts& parts);
  // Fetches all files that match one of the patterns, as lathe::FetchMatching has them. Throws
  // NotFound if none does, or if the server gives no list of files. There must be a client.
  void FetchMatching(const std::vector<std::string>& patterns);

 private:
  // Returns the Hub's answer to the question for the list. There must be a client.
  const HubListing& Listing();
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
  // Says where there is no list, and what the server answered instead.
  std::string NoList();

  const HubCache& cache_;
  HubClient* client_;
  std::string model_, commit_;
  bool check_cached_;
  std::optional<HubListing> listing_;  // once it was asked for
};

}  // namespace lathe
