// A branch that moves doesn't take away the commit that the cache has whole.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_updates_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace lathe
