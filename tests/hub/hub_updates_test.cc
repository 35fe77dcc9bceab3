// A branch that moves doesn't take away the commit that the cache has whole.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "lathe/core/hub/cached_models.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kSecond[] = "2222222222222222222222222222222222222222";

class HubUpdatesTest : public HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    new_weights_ = RandomBytes(100'000, 8);
  }
  ~HubUpdatesTest() override { unsetenv("HF_HUB_OFFLINE"); }

  // Moves the branch to a commit with another configuration and other weights.
  void MoveBranch(std::map<std::string, std::string> other_revisions = {}) {
    other_revisions["main"] = kSecond;
    hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\", \"a\": 1}"}},
                                {"vocab.txt", {"[PAD]\n[UNK]\n"}},
                                {"model.safetensors", {new_weights_, true}}},
                      .revisions = std::move(other_revisions)});
  }
  std::string Branch() const { return ReadFile(Cache() + "/refs/main"); }

  struct Outcome {
    std::string commit, weights, note;
  };
  Outcome FetchWithNote(const CheckpointParts& parts = kAllParts) {
    testing::internal::CaptureStderr();
    Outcome outcome;
    try {
      const ResolvedCheckpoint resolved = FetchCheckpoint(kModel, parts, Settings());
      outcome.commit = resolved.commit;
      EXPECT_EQ(resolved.folder, Cache() + "/snapshots/" + resolved.commit);
      if (parts.weights) outcome.weights = Weights(resolved.folder);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
    outcome.note = testing::internal::GetCapturedStderr();
    return outcome;
  }
  // Expects that the old commit is used, and that the note ends so.
  void ExpectOld(const std::string& note_end, const CheckpointParts& parts = kAllParts) {
    const Outcome outcome = FetchWithNote(parts);
    EXPECT_EQ(outcome.commit, kCommit);
    EXPECT_EQ(outcome.weights, weights_);
    EXPECT_TRUE(note_end.empty() ? outcome.note.empty() : outcome.note.ends_with(note_end + "\n"))
        << outcome.note;
  }
  // Expects the same without any request, and if nobody answers.
  void ExpectOldWithoutHub(const std::string& note_end, const std::string& note_of_error) {
    setenv("HF_HUB_OFFLINE", "1", 1);
    ExpectOld(note_end);
    unsetenv("HF_HUB_OFFLINE");
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
    ExpectOld(note_of_error);
    setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
  }

  std::string new_weights_;
};

const std::string kOldIsUsed =
    "; the cache has owner/name of commit " + std::string(kCommit) + ", which is used";

TEST_F(HubUpdatesTest, AKilledUpdateLeavesTheOldCommit) {
  Fetch();
  MoveBranch();
  cdn_.Fail({.path = "/stored/", .times = -1, .kind = HubFault::kStall, .at = 40'000});
  const pid_t child = fork();
  if (child == 0) {
    try {
      Fetch();
    } catch (const Error&) {
    }
    _exit(1);
  }
  const HubCache cache(root_ + "/hub", kModel);
  const auto has_begun = [&] {
    for (const std::string& part : cache.Leftovers(LfsEtag(new_weights_))) {
      std::error_code code;
      if (fs::file_size(part, code) > 0 && !code) return true;
    }
    return false;
  };
  for (int i = 0; i < 10'000 && !has_begun(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(has_begun());
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));

  EXPECT_EQ(Branch(), kCommit);
  ExpectOldWithoutHub("", kOldIsUsed);
  cdn_.ClearFaults();
  cdn_.ForgetRequests();
  EXPECT_EQ(FetchWithNote().weights, new_weights_);
  EXPECT_EQ(cdn_.requests().at(0).headers.at("range"), "bytes=40000-");
  EXPECT_EQ(Branch(), kSecond);
}

TEST_F(HubUpdatesTest, AnUpdateThatCannotBeFetchedGivesTheOldCommit) {
  Fetch();
  MoveBranch();
  const HubFault faults[] = {{.path = "/stored/", .times = -1, .status = 503},
                             {.path = "/stored/", .times = -1, .kind = HubFault::kCut, .at = 0},
                             {.path = "/stored/", .times = -1, .status = 403}};
  for (const HubFault& fault : faults) {
    cdn_.Fail(fault);
    ExpectOld(kOldIsUsed);
    EXPECT_EQ(Branch(), kCommit);
    cdn_.ClearFaults();
  }
  // Files of the Hub itself
  hub_.Fail({.path = std::string(kSecond) + "/model.safetensors", .times = -1, .status = 500});
  ExpectOld(kOldIsUsed);
  hub_.ClearFaults();
  // A model whose weights differ from their hash is no reason to use others.
  cdn_.Fail({.path = "/stored/", .times = -1, .kind = HubFault::kWrongBytes, .at = 5});
  ExpectError([&] { Fetch(); }, "is damaged: its hash is");
  cdn_.ClearFaults();
  const Outcome outcome = FetchWithNote();
  EXPECT_EQ(outcome.commit, kSecond);
  EXPECT_EQ(outcome.note, "");
  EXPECT_EQ(Branch(), kSecond);
}

// A branch may move before all files of its new commit are there.
TEST_F(HubUpdatesTest, AnIncompleteCommitGivesTheOldOne) {
  Fetch();
  const HubServerFile index = {
      "{\"weight_map\": {\"a\": \"part-1.safetensors\", \"b\": \"part-2.safetensors\"}}"};
  hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\"}"}},
                              {"vocab.txt", {"[PAD]\n[UNK]\n"}},
                              {"model.safetensors.index.json", index},
                              {"part-1.safetensors", {"x", true}}},
                    .revisions = {{"main", kSecond}}});
  ExpectOld(": has no part-2.safetensors in revision \"" + std::string(kSecond) + "\"" +
            kOldIsUsed);
  EXPECT_EQ(Branch(), kCommit);
  HubSettings settings = Settings();
  settings.revision = kSecond;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, "has no part-2.safetensors");

  MoveBranch();
  hub_.Fail({.path = "/api/", .times = -1, .kind = HubFault::kWrongList, .text = "{\"sha\": 1}"});
  fs::remove_all(Cache() + "/.no_exist/" + kSecond);
  ExpectOld(" is no such list" + kOldIsUsed);
  hub_.ClearFaults();
  hub_.Fail(
      {.path = "/api/", .times = -1, .status = 404, .headers = {"X-Error-Code: RevisionNotFound"}});
  ExpectOld(": no revision \"" + std::string(kSecond) + "\", which \"main\" should be" +
            kOldIsUsed);
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              ": no revision \"" + std::string(kSecond) + "\"", "a revision is a branch");
  EXPECT_EQ(Branch(), kCommit);
  hub_.ClearFaults();
  EXPECT_EQ(FetchWithNote().weights, new_weights_);
  EXPECT_EQ(Branch(), kSecond);
}

// So it may before its weights, its configuration or a sound index are there.
TEST_F(HubUpdatesTest, ACommitThatCannotBeReadGivesTheOldOne) {
  Fetch();
  HubSettings settings = Settings();
  settings.revision = kSecond;
  const HubServerFile config = {"{\"model_type\": \"bert\"}"}, vocab = {"[PAD]\n[UNK]\n"};
  const auto expect_old = [&](std::map<std::string, HubServerFile> files, const std::string& part) {
    for (const char* folder : {"/snapshots/", "/.no_exist/"}) {
      fs::remove_all(Cache() + folder + kSecond);
    }
    files["vocab.txt"] = vocab;
    hub_.Add(kModel, {.files = std::move(files), .revisions = {{"main", kSecond}}});
    const Outcome outcome = FetchWithNote();
    EXPECT_EQ(outcome.commit, kCommit) << part;
    EXPECT_EQ(outcome.weights, weights_) << part;
    EXPECT_NE(outcome.note.find(part), std::string::npos) << outcome.note;
    EXPECT_TRUE(outcome.note.ends_with(kOldIsUsed + "\n")) << outcome.note;
    EXPECT_EQ(Branch(), kCommit);
    ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, part);
  };
  const HubServerFile weights = {new_weights_, true};
  expect_old({{"config.json", config}},
             ": has no weights (model.safetensors, pytorch_model.bin or tf_model.h5); it has "
             "config.json, vocab.txt");
  expect_old({{"model.safetensors", weights}},
             ": has no config.json; it has model.safetensors, vocab.txt");
  const std::string deep = std::string(300, '[') + std::string(300, ']');
  const std::pair<std::string, std::string> indexes[] = {
      {"{\"weight_map\": {", "model.safetensors.index.json: is not JSON"},
      {"{\"weight_map\": {\"a\": \"../../x.safetensors\"}}", "\"../../x.safetensors\" must be"},
      {"{\"weight_map\": " + deep + "}", "nested more than 200 levels deep"}};
  for (const auto& [index, part] : indexes) {
    expect_old({{"config.json", config}, {"model.safetensors.index.json", {index}}}, part);
  }
  hub_.Fail({.path = "/api/",
             .times = -1,
             .kind = HubFault::kWrongList,
             .text = "{\"sha\": " + deep + "}"});
  expect_old({{"config.json", config}, {"model.safetensors", weights}},
             "the list of files: the JSON is nested more than 200 levels deep");
  hub_.ClearFaults();
  // A server that neither lists files nor names the commit of a file that is not there.
  hub_.Fail({.path = "/api/", .times = -1, .status = 404});
  hub_.Fail({.path = "config.json", .times = -1, .kind = HubFault::kNoCommit});
  expect_old({{"model.safetensors", weights}}, ": has no config.json");
  hub_.ClearFaults();
  // A model need not have a tokenizer.
  fs::remove_all(Cache() + "/.no_exist/" + kSecond);
  hub_.Add(kModel, {.files = {{"config.json", config}, {"model.safetensors", weights}},
                    .revisions = {{"main", kSecond}}});
  const Outcome outcome = FetchWithNote();
  EXPECT_EQ(outcome.weights, new_weights_);
  EXPECT_EQ(outcome.note, "");
}

// It says nothing about the commit.
TEST_F(HubUpdatesTest, AnIndexThatOnlyTheCacheHasDamagedIsAnError) {
  Fetch();
  const std::string index = "{\"weight_map\": {\"a\": \"part.safetensors\"}}";
  hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\"}"}},
                              {"model.safetensors.index.json", {index}},
                              {"part.safetensors", {new_weights_, true}}},
                    .revisions = {{"main", kSecond}}});
  Fetch();
  PublishText(Cache() + "/blobs/" + GitEtag(index), "{");
  ExpectError([&] { Fetch(); }, "model.safetensors.index.json: is not JSON");
}

// The Hub's own index is what it should be, so it was not damaged here.
TEST_F(HubUpdatesTest, AnIndexThatTheHubHasDamagedIsNamedOnce) {
  hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\"}"}},
                              {"vocab.txt", {"[PAD]\n[UNK]\n"}},
                              {"model.safetensors.index.json", {"{"}}}});
  HubSettings settings = Settings();
  settings.check_cached = true;
  for (int i = 0; i < 2; ++i) {
    testing::internal::CaptureStderr();
    ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
                "model.safetensors.index.json: is not JSON");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << i;
  }
}

TEST_F(HubUpdatesTest, AnswersThatMayNotBeFollowedStayErrors) {
  Fetch();
  MoveBranch();
  const auto expect_error = [&](HubFault fault, const std::string& part) {
    fault.path = std::string(kSecond) + "/config.json";
    fault.times = -1;
    hub_.Fail(fault);
    ExpectError([&] { Fetch(); }, part);
    EXPECT_EQ(Branch(), kCommit);
    hub_.ClearFaults();
  };
  expect_error({.path = "", .kind = HubFault::kWrongEtag, .text = "../../x"},
               "the etag \"..\" leads out of its folder");
  const std::string commit = "X-Repo-Commit: " + std::string(kSecond);
  expect_error({.path = "",
                .status = 302,
                .headers = {commit, "ETag: \"a\"", "X-Linked-Size: 1", "Location: ftp://host/x"}},
               "\"ftp://host/x\" is neither an http nor an https address");
}

TEST_F(HubUpdatesTest, ACacheThatCannotBeWrittenGivesTheOldCommit) {
  Fetch();
  MoveBranch();
  const auto expect_old = [&](const std::string& problem) {
    const Outcome outcome = FetchWithNote();
    EXPECT_EQ(outcome.commit, kCommit);
    EXPECT_EQ(outcome.weights, weights_);
    EXPECT_NE(outcome.note.find(problem), std::string::npos) << outcome.note;
    EXPECT_TRUE(outcome.note.ends_with(kOldIsUsed + "\n")) << outcome.note;
    return HasFailure() ? 1 : 0;
  };
  // A read-only cache, also if only small files have changed
  SetFolderRights(root_ + "/hub", fs::perms(0555));
  EXPECT_EQ(RunWithoutRights([&] { return expect_old(": Permission denied"); }), 0);
  new_weights_ = weights_;
  MoveBranch();
  EXPECT_EQ(RunWithoutRights([&] { return expect_old(": Permission denied"); }), 0);
  SetFolderRights(root_ + "/hub", fs::perms(0755));
  EXPECT_EQ(Branch(), kCommit);
  // A disk that is full in the middle: no file may have more than 50 kB.
  new_weights_ = RandomBytes(100'000, 8);
  MoveBranch();
  EXPECT_EQ(RunWithoutRights([&] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit limit = {50'000, 50'000};
              setrlimit(RLIMIT_FSIZE, &limit);
              return expect_old(".incomplete: File too large");
            }),
            0);
  EXPECT_EQ(Branch(), kCommit);
  // A file that can't fit is not begun.
  hub_.Fail({.path = "model.safetensors",
             .method = "HEAD",
             .times = -1,
             .status = 302,
             .headers = {"X-Repo-Commit: " + std::string(kSecond),
                         "X-Linked-Etag: \"" + LfsEtag("large") + "\"",
                         "X-Linked-Size: 1000000000000000000", "Location: " + cdn_.url()}});
  expect_old("/blobs: 1000000 TB are needed but ");
  hub_.ClearFaults();
  cdn_.ForgetRequests();
  EXPECT_EQ(FetchWithNote().weights, new_weights_);
  EXPECT_EQ(cdn_.requests().at(0).headers.at("range"), "bytes=50000-");
  EXPECT_EQ(Branch(), kSecond);
}

TEST_F(HubUpdatesTest, ACacheThatCannotBeWrittenIsAnErrorWithoutAWholeCommit) {
  Fetch({.config = true});
  MoveBranch();
  SetFolderRights(root_ + "/hub", fs::perms(0555));
  EXPECT_EQ(RunWithoutRights([&] {
              ExpectError([&] { Fetch(); }, ": Permission denied", "choose another with HF_HOME");
              return HasFailure() ? 1 : 0;
            }),
            0);
  SetFolderRights(root_ + "/hub", fs::perms(0755));
}

TEST_F(HubUpdatesTest, DamageThatCannotBeMendedIsAnError) {
  Fetch();
  MoveBranch();
  Fetch();
  HubSettings settings = Settings();
  settings.check_cached = true;
  // The old commit has other weights, which are sound.
  const std::string path = fs::canonical(Cache() + "/snapshots/" + kSecond + "/model.safetensors");
  std::ofstream(path, std::ios::app) << "x";
  SetFolderRights(root_ + "/hub", fs::perms(0555));
  EXPECT_EQ(RunWithoutRights([&] {
              ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
                          ": Permission denied", "choose the cache of models");
              return HasFailure() ? 1 : 0;
            }),
            0);
  SetFolderRights(root_ + "/hub", fs::perms(0755));
}

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
