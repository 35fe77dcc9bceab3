// Tests which of a branch's commits in the cache is used, and what deleting one of them leaves.
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lathe/core/hub/cached_models.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_updates_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

TEST_F(HubUpdatesTest, DamageIsNamedOffline) {
  Fetch();
  MoveBranch();
  Fetch();
  HubSettings settings = Settings();
  settings.check_cached = settings.offline = true;
  const std::string path = Cache() + "/snapshots/" + kSecond + "/model.safetensors";
  std::ofstream(fs::canonical(path), std::ios::app) << "x";
  testing::internal::CaptureStderr();
  EXPECT_EQ(FetchCheckpoint(kModel, kAllParts, settings).commit, kCommit);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "note: " + path + ": is damaged: its hash is not its name, so commit " + kCommit +
                " is used\n");
}

TEST_F(HubUpdatesTest, APartOfTheNewCommitDoesNotHideTheOldOne) {
  Fetch();
  MoveBranch();
  EXPECT_EQ(FetchWithNote({.config = true}).commit, kSecond);
  EXPECT_EQ(Branch(), kSecond);
  const std::string note = "note: the cache has not all that is needed of owner/name of commit " +
                           std::string(kSecond) + ", so commit " + kCommit + " is used";
  const std::string instead = kOldIsUsed + " instead of " + kSecond;
  ExpectOldWithoutHub(note, instead);
  cdn_.Fail({.path = "/stored/", .times = -1, .status = 503});
  ExpectOld(instead);
  cdn_.ClearFaults();
  setenv("HF_HUB_OFFLINE", "1", 1);
  const Outcome config = FetchWithNote({.config = true});
  EXPECT_EQ(config.commit, kSecond);
  EXPECT_EQ(config.note, "");
  // A whole commit is that commit and no other.
  HubSettings settings = Settings();
  settings.revision = kSecond;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              "has no weights (model.safetensors, pytorch_model.bin or tf_model.h5) in the cache");
  unsetenv("HF_HUB_OFFLINE");
  settings.offline = false;
  cdn_.Fail({.path = "/stored/", .times = -1, .status = 503});
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, "can't answer, status 503");
  // huggingface_hub notes the branch's commit before it fetches anything.
  cdn_.ClearFaults();
  fs::remove_all(Cache() + "/snapshots/" + kSecond);
  ExpectOldWithoutHub(note, instead);
  EXPECT_EQ(FetchWithNote().weights, new_weights_);
}

TEST_F(HubUpdatesTest, FilesWithoutLinksLeaveTheLinksOfOtherCommits) {
  Fetch();
  new_weights_ = weights_;
  MoveBranch();
  cdn_.ForgetRequests();
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  const Outcome moved = FetchWithNote();
  unsetenv("HF_HUB_DISABLE_SYMLINKS");
  EXPECT_EQ(moved.commit, kSecond);
  EXPECT_TRUE(cdn_.requests().empty());  // the weights are a copy of the blob
  EXPECT_FALSE(fs::is_symlink(Cache() + "/snapshots/" + kSecond + "/model.safetensors"));
  EXPECT_TRUE(fs::is_symlink(Cache() + "/snapshots/" + kCommit + "/model.safetensors"));
  for (const std::string& line : Tree(Cache())) EXPECT_FALSE(line.ends_with(".incomplete")) << line;
  setenv("HF_HUB_OFFLINE", "1", 1);
  HubSettings settings = Settings();
  for (const char* commit : {kCommit, kSecond}) {
    settings.revision = commit;
    EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_) << commit;
  }
}

TEST_F(HubUpdatesTest, FilesWithoutLinksLeaveTheLinksToADamagedBlob) {
  Fetch();
  new_weights_ = weights_;
  MoveBranch();
  std::string damaged = weights_;
  damaged[70'000] ^= 1;
  PublishText(Cache() + "/blobs/" + LfsEtag(weights_), damaged);
  HubSettings settings = Settings();
  settings.check_cached = true;
  settings.use_symlinks = false;
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
  EXPECT_FALSE(fs::is_symlink(Cache() + "/snapshots/" + kSecond + "/model.safetensors"));
  EXPECT_TRUE(fs::is_symlink(Cache() + "/snapshots/" + kCommit + "/model.safetensors"));
  EXPECT_EQ(Weights(Cache() + "/snapshots/" + kCommit), weights_);
}

TEST_F(HubUpdatesTest, TheLatestEarlierCommitIsUsed) {
  const auto add_snapshot = [&](char digit) {
    const std::string folder = Cache() + "/snapshots/" + std::string(40, digit);
    fs::copy(Cache() + "/snapshots/" + kCommit, folder,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return folder;
  };
  Fetch();
  MoveBranch();
  Fetch({.config = true});
  setenv("HF_HUB_OFFLINE", "1", 1);
  const std::string third(40, '3'), fourth(40, '4'), zeroth(40, '0');
  add_snapshot('3');
  add_snapshot('0');
  fs::remove(add_snapshot('4') + "/model.safetensors");
  EXPECT_EQ(FetchWithNote().commit, kCommit);
  // Commits that were asked for by their hashes or by other names are other versions of the model.
  fs::remove(Cache() + "/snapshots/" + kCommit + "/model.safetensors");
  EXPECT_THROW(Fetch(), Error);
  // Those that the branch had count, the latest first, if they are whole.
  PublishText(Cache() + "/.former_refs/main", zeroth + "\n" + third + "\n" + fourth + "\n");
  EXPECT_EQ(FetchWithNote().commit, third);
  PublishText(Cache() + "/.former_refs/main", third + "\n" + zeroth + "\n");
  EXPECT_EQ(FetchWithNote().commit, zeroth);
}

// A branch may come back to a commit that it had.
TEST_F(HubUpdatesTest, FormerCommitsAreKeptOnce) {
  const HubCache cache(root_ + "/hub", kModel);
  const std::string a(40, 'a'), b(40, 'b'), c(40, 'c');
  for (const std::string& commit : {a, b, a, a, c}) cache.KeepCommit("main", commit);
  EXPECT_EQ(cache.FindCommit("main"), c);
  EXPECT_EQ(cache.FormerCommits("main"), (std::vector<std::string>{a, b}));
  EXPECT_TRUE(cache.FormerCommits("other").empty());
}

TEST_F(HubUpdatesTest, FilesByPatternDoNotHideTheOldCommit) {
  Fetch();
  MoveBranch();
  cdn_.Fail({.path = "/stored/", .times = -1, .status = 503});
  ExpectError([&] { FetchMatching(kModel, {"*"}, Settings()); }, "can't answer, status 503");
  ExpectError([&] { FetchMatching(kModel, {"*.gguf"}, Settings()); }, "no file matches");
  EXPECT_EQ(Branch(), kCommit);
  cdn_.ClearFaults();
  FetchMatching(kModel, {"*"}, Settings());
  EXPECT_EQ(Branch(), kSecond);
}

TEST_F(HubUpdatesTest, ADeletedRevisionTakesItsBrokenOffDownloadsAlong) {
  const std::string cache = root_ + "/hub";
  const auto break_off = [&] {
    Fetch();
    MoveBranch();
    cdn_.Fail({.path = "/stored/", .kind = HubFault::kCut, .at = 40'000});
    cdn_.Fail({.path = "/stored/", .times = -1, .status = 503});
    EXPECT_EQ(FetchWithNote().commit, kCommit);
    cdn_.ClearFaults();
    EXPECT_EQ(CachedModels(cache).at(0).incomplete, 40'000);
  };
  break_off();
  const int64_t config = std::string("{\"model_type\": \"bert\", \"a\": 1}").size();
  EXPECT_EQ(DeleteFromCache(cache, kModel, kSecond), 40'000 + config);
  EXPECT_EQ(CachedModels(cache).at(0).incomplete, 0);
  setenv("HF_HUB_OFFLINE", "1", 1);
  ExpectOld("");
  unsetenv("HF_HUB_OFFLINE");

  // What the revision that stays lacks, it may need.
  HubTest::SetUp();
  std::filesystem::remove_all(cache);
  break_off();
  EXPECT_EQ(DeleteFromCache(cache, kModel, kCommit),
            100'000 + static_cast<int64_t>(std::string("{\"model_type\": \"bert\"}").size()));
  EXPECT_EQ(CachedModels(cache).at(0).incomplete, 40'000);
  cdn_.ForgetRequests();
  EXPECT_EQ(FetchWithNote().weights, new_weights_);
  EXPECT_EQ(cdn_.requests().at(0).headers.at("range"), "bytes=40000-");
}

TEST_F(HubUpdatesTest, ADeletedCommitGivesTheOldOneWithoutHub) {
  Fetch();
  MoveBranch();
  Fetch();
  DeleteFromCache(root_ + "/hub", kModel, kSecond);
  ExpectOldWithoutHub("note: the newest commit of owner/name is not in the cache, so commit " +
                          std::string(kCommit) + " is used",
                      kOldIsUsed);
  hub_.Fail({.path = "", .times = -1, .status = 503});
  ExpectOld(kOldIsUsed);
  hub_.ClearFaults();
  const Outcome outcome = FetchWithNote();
  EXPECT_EQ(outcome.commit, kSecond);
  EXPECT_EQ(outcome.note, "");
  // Without a whole commit it is an error. The name alone is in the cache.
  DeleteFromCache(root_ + "/hub", kModel, kSecond);
  fs::remove(Cache() + "/snapshots/" + kCommit + "/model.safetensors");
  setenv("HF_HUB_OFFLINE", "1", 1);
  ExpectError([&] { Fetch(); }, "no model of this name and revision is in the cache");
  fs::remove_all(Cache());
  ExpectError([&] { Fetch(); }, "no model of this name is in the cache");
}

TEST_F(HubUpdatesTest, AFirstDownloadThatBreaksOffIsKnown) {
  cdn_.Fail({.path = "/stored/", .times = -1, .status = 503});
  ExpectError([&] { Fetch(); }, "can't answer, status 503");
  setenv("HF_HUB_OFFLINE", "1", 1);
  ExpectError([&] { Fetch(); }, "in the cache; it has config.json");
}

}  // namespace
}  // namespace lathe
