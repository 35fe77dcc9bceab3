// Each thing that can go wrong with a model's name, its files or the cache gives one clear line.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lathe/core/hub/cached_models.h"
#include "lathe/core/hub/file_lock.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

TEST_F(HubTest, NoSuchModel) {
  ExpectError([&] { FetchCheckpoint("o/none", kAllParts, Settings()); },
              "o/none at " + hub_.url() + ": no such model, or it is private",
              "with token, HF_TOKEN");
  EXPECT_FALSE(Exists(root_ + "/hub/models--o--none"));
  ExpectError([&] { ResolveCheckpoint("/nowhere/at/all", kAllParts); },
              "/nowhere/at/all: no such folder", "owner/name");
  ExpectError([&] { FetchCheckpoint("../etc", kAllParts, Settings()); }, "can be no model's name");
}

TEST_F(HubTest, NoSuchRevision) {
  HubSettings settings = Settings();
  settings.revision = "v9";
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, ": no revision \"v9\"",
              "a branch, a tag or a whole commit");
  settings.revision = std::string(40, '9');
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, ": no revision \"999");
  settings.revision = "../../x";
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, "can be no revision");
}

TEST_F(HubTest, PrivateAndGatedModels) {
  hub_.Add("o/private", {.files = {{"config.json", {"{}"}}}, .token = "hf_good"});
  hub_.Add("o/gated", {.files = {{"config.json", {"{}"}}}, .token = "hf_good", .gated = true});
  const auto fetch = [&](const char* name, const char* token) {
    HubSettings settings = Settings();
    settings.token = token;
    FetchCheckpoint(name, {.config = true}, settings);
  };
  ExpectError([&] { fetch("o/private", ""); }, "no such model, or it is private",
              "give a token with token, HF_TOKEN or the file " + root_ + "/token");
  ExpectError([&] { fetch("o/private", "hf_bad"); }, "this token may not read it", "the token");
  ExpectError([&] { fetch("o/gated", ""); }, "the model is gated",
              "ask for access at " + hub_.url() + "/o/gated");
  ExpectError([&] { fetch("o/gated", "hf_bad"); }, "gated, and this token has no access to it");
  fetch("o/private", "hf_good");
  fetch("o/gated", "hf_good");
}

TEST_F(HubTest, NoWeightsInIt) {
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}}, {"model.onnx", {"x"}}}});
  ExpectError([&] { FetchCheckpoint("o/n", kAllParts, Settings()); },
              "o/n: has no weights (model.safetensors, pytorch_model.bin or tf_model.h5); it has "
              "config.json, model.onnx");
  hub_.Add("o/empty", {.files = {{"README.md", {"x"}}}});
  ExpectError([&] { FetchCheckpoint("o/empty", kAllParts, Settings()); },
              "o/empty: has no config.json; it has README.md");
  hub_.Fail({.path = "/api/models/", .times = -1, .status = 404});
  ExpectError([&] { FetchCheckpoint("o/n", kAllParts, Settings()); },
              "tf_model.h5), and " + hub_.url() + " gives no list of its files (status 404)");
}

TEST_F(HubTest, DiskFullInTheMiddle) {
  // The child can't write files of more than 50 kB. Its download must leave a cache that works.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {50'000, 50'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      Fetch();
    } catch (const Error& e) {
      const std::string message = e.what();
      code = message.find("File too large") != std::string::npos &&
                     message.find("or cache_dir choose the cache") != std::string::npos
                 ? 0
                 : 2;
      if (code == 2) fprintf(stderr, "%s\n", e.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  cdn_.ForgetRequests();
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(cdn_.requests().at(0).headers.at("range"), "bytes=50000-");
}

TEST_F(HubTest, CacheThatCannotBeWritten) {
  PublishText(root_ + "/file", "");
  setenv("HF_HUB_CACHE", (root_ + "/file").c_str(), 1);
  ExpectError([&] { Fetch(); }, root_ + "/file", "choose another with HF_HOME");
  setenv("HF_HUB_CACHE", "/proc/lathe", 1);
  ExpectError([&] { Fetch(); }, "/proc/lathe/models--owner--name/blobs: ", "HF_HUB_CACHE");
}

TEST_F(HubTest, ReadOnlyCacheIsRead) {
  Fetch({.config = true});
  SetFolderRights(root_ + "/hub", fs::perms(0555));
  EXPECT_EQ(RunWithoutRights([&] {
              ExpectError([&] { Fetch(); }, ".lock: Permission denied", "choose another with HF");
              return HasFailure() ? 1 : 0;
            }),
            0);
  SetFolderRights(root_ + "/hub", fs::perms(0755));
  Fetch();
  SetFolderRights(root_ + "/hub", fs::perms(0555));
  EXPECT_EQ(RunWithoutRights([&] { return Weights(Fetch()) == weights_ ? 0 : 1; }), 0);
  SetFolderRights(root_ + "/hub", fs::perms(0755));
}

TEST_F(HubTest, CacheThatCannotBeRead) {
  const std::string cache = root_ + "/hub";
  EXPECT_TRUE(CachedModels(cache).empty());  // it isn't there yet
  Fetch({.config = true});
  PublishText(root_ + "/file", "");
  ExpectError([&] { CachedModels(root_ + "/file"); }, root_ + "/file: Not a directory",
              "read; cache_dir, HF_HUB_CACHE or HF_HOME chooses it");
  fs::permissions(cache, fs::perms(0));
  EXPECT_EQ(RunWithoutRights([&] {
              ExpectError([&] { CachedModels(cache); }, cache + ": Permission denied",
                          "a folder that you may read");
              ExpectError([&] { DeleteFromCache(cache, kModel, ""); },
                          "models--owner--name: Permission denied");
              return HasFailure() ? 1 : 0;
            }),
            0);
  fs::permissions(cache, fs::perms(0755));
  // A model that only its owner may read doesn't hide the others.
  fs::create_directories(cache + "/models--o--readable");
  fs::permissions(Cache(), fs::perms(0));
  EXPECT_EQ(RunWithoutRights([&] {
              const std::vector<CachedModel> models = CachedModels(cache);
              EXPECT_EQ(models.size(), 2u);
              EXPECT_EQ(models.at(0).name, "o/readable");
              EXPECT_EQ(models.at(0).fault, "");
              EXPECT_EQ(models.at(1).name, kModel);
              EXPECT_NE(models.at(1).fault.find("Permission denied"), std::string::npos);
              return HasFailure() ? 1 : 0;
            }),
            0);
  fs::permissions(Cache(), fs::perms(0755));
  EXPECT_EQ(CachedModels(cache).at(1).revisions.size(), 1u);
}

TEST_F(HubTest, AFileThatCannotFitIsNotBegun) {
  hub_.Fail({.path = "model.safetensors",
             .method = "HEAD",
             .times = -1,
             .status = 302,
             .headers = {"X-Repo-Commit: " + std::string(kCommit),
                         "X-Linked-Etag: \"" + LfsEtag(weights_) + "\"",
                         "X-Linked-Size: 1000000000000000000", "Location: " + cdn_.url()}});
  ExpectError([&] { Fetch(); }, "/blobs: 1000000 TB are needed but ", "choose the cache");
  EXPECT_TRUE(cdn_.requests().empty());
}

// Starts a process that holds the lock until it is killed.
pid_t HoldLock(const std::string& path) {
  int ready[2];
  if (pipe(ready) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock(path, 1, "", [] { return 0; });
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  return child;
}

TEST_F(HubTest, SaysWhatItWaitsFor) {
  const std::string path = root_ + "/a.lock";
  const auto wait = [&](const std::string& what) {
    const pid_t child = HoldLock(path);
    const auto start = std::chrono::steady_clock::now();
    testing::internal::CaptureStderr();
    const FileLock lock(path, 60, what, [&] {
      if (std::chrono::steady_clock::now() - start > std::chrono::milliseconds(2500)) {
        kill(child, SIGKILL);
      }
      return 0;
    });
    EXPECT_TRUE(lock.is_held());
    waitpid(child, nullptr, 0);
    const std::string said = testing::internal::GetCapturedStderr();
    const size_t at = said.find(" (");
    EXPECT_TRUE(said.empty() ||
                said.substr(0, at) == "note: waiting for process " + std::to_string(child))
        << said;
    return said.substr(std::min(said.find(')'), said.size()));
  };
  EXPECT_EQ(wait("model.safetensors of owner/name"),
            "), which fetches model.safetensors of owner/name\n");
  EXPECT_EQ(wait(""), "");
}

TEST_F(HubTest, SaysWhoHoldsALock) {
  Fetch({.config = true});
  const std::string path = root_ + "/hub/.locks/models--owner--name/" + LfsEtag(weights_) + ".lock";
  const pid_t child = HoldLock(path);
  HubSettings settings = Settings();
  settings.lock_timeout = 0.2;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              path + ": held by process " + std::to_string(child) + " (", "end that process");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
}

}  // namespace
}  // namespace lathe
