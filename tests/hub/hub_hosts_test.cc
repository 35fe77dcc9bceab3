// Who is to blame: the Hub, the host of large files, or a proxy. And what stands in for them.
#include <fstream>

#include "lathe/core/hub/cached_models.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kSecond[] = "2222222222222222222222222222222222222222";

class HubHostsTest : public HubTest {
 protected:
  ~HubHostsTest() override {
    for (const char* name :
         {"http_proxy", "https_proxy", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_SYMLINKS"}) {
      unsetenv(name);
    }
  }

  // Returns the error of a fetch with these settings.
  static Error ErrorOf(const HubSettings& settings) {
    try {
      FetchCheckpoint(kModel, kAllParts, settings);
    } catch (const Error& e) {
      return e;
    }
    return InvalidArgument("no error");
  }
  HubSettings Checking() const {
    HubSettings settings = Settings();
    settings.check_cached = true;
    return settings;
  }
  // Makes the Hub lead to this address for the weights.
  void LeadTo(const std::string& location) {
    hub_.Fail({.path = "model.safetensors",
               .times = -1,
               .status = 302,
               .headers = {"X-Repo-Commit: " + std::string(kCommit),
                           "X-Linked-Etag: \"" + LfsEtag(weights_) + "\"",
                           "X-Linked-Size: " + std::to_string(weights_.size()),
                           "Location: " + location}});
  }
  void MoveBranch() {
    hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\", \"a\": 1}"}},
                                {"vocab.txt", {"[PAD]\n[UNK]\n"}},
                                {"model.safetensors", {weights_, true}}},
                      .revisions = {{"main", kSecond}}});
  }
};

TEST_F(HubHostsTest, AHostThatRefusesIsNamed) {
  const std::string at_host = "owner/name at " + cdn_.url() + ": ";
  for (const int status : {401, 403}) {
    cdn_.Fail({.path = "/stored/",
               .times = -1,
               .status = status,
               .headers = {"X-Error-Code: GatedRepo"}});
    // The Hub has answered, so the name is right.
    try {
      ResolveCheckpoint(kModel, kAllParts);
      ADD_FAILURE() << status;
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), at_host + "access denied, status " + std::to_string(status) +
                                 ", for model.safetensors");
      EXPECT_TRUE(e.hint().starts_with("check the firewall or proxy")) << e.hint();
      EXPECT_EQ(e.hint().find("token"), std::string::npos) << e.hint();
    }
    cdn_.ClearFaults();
  }
  const std::pair<int, std::string> problems[] = {
      {404, "has no model.safetensors, although the Hub leads there"},
      {429, "too many requests, status 429"},
      {503, "the server can't answer, status 503, for model.safetensors"}};
  for (const auto& [status, problem] : problems) {
    cdn_.Fail({.path = "/stored/", .times = -1, .status = status});
    EXPECT_EQ(ErrorOf(Settings()).message(), at_host + problem);
    cdn_.ClearFaults();
  }
  cdn_.Fail({.path = "/stored/", .times = -1, .kind = HubFault::kWrongBytes, .at = 5});
  EXPECT_TRUE(ErrorOf(Settings())
                  .message()
                  .starts_with("owner/name: model.safetensors from " + cdn_.url() +
                               " is damaged: its hash is "));
}

TEST_F(HubHostsTest, AHostThatDoesNotAnswerIsNamed) {
  HubSettings settings = Settings();
  settings.download_timeout = 0.5;
  cdn_.Fail({.path = "/stored/", .times = -1, .kind = HubFault::kStall, .at = 0});
  EXPECT_EQ(ErrorOf(settings).message(),
            "owner/name at " + cdn_.url() + ": no answer in time (nothing came any more)");
  cdn_.ClearFaults();
  const auto expect = [&](const std::string& location, const std::string& part) {
    LeadTo(location);
    const std::string message = ErrorOf(settings).message();
    EXPECT_TRUE(message.starts_with(part)) << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    EXPECT_EQ(message.find('?'), std::string::npos) << message;
    hub_.ClearFaults();
  };
  expect("http://me:secret@127.0.0.1:1/secret?signature=secret",
         "owner/name at http://127.0.0.1:1: no connection (");
  expect("https://cdn.invalid/secret?secret",
         "owner/name at https://cdn.invalid: the host's name can't be resolved (");
  if (!MakeCertificate(root_)) GTEST_SKIP() << "there is no openssl here";
  const HubServer encrypted(
      {.certificate = root_ + "/cert.pem", .key = root_ + "/key.pem", .host = "localhost"});
  LeadTo(encrypted.url() + "/x");
  try {
    ResolveCheckpoint(kModel, kAllParts);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_TRUE(e.message().starts_with("owner/name at " + encrypted.url() +
                                        ": the server's certificate or its encryption is not"))
        << e.message();
  }
}

TEST_F(HubHostsTest, WaitsNameTheHost) {
  HubSettings settings = Settings();
  settings.first_delay = 1;
  settings.show_waits = true;
  cdn_.Fail({.path = "/stored/", .status = 503});
  testing::internal::CaptureStderr();
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "note: owner/name at " + cdn_.url() + ": status 503; trying again in 1 s (try 2 of 6)\n");
}

TEST_F(HubHostsTest, OnlyUnusualPortsAreShown) {
  const HubClient client(Settings(), kModel);
  const auto shown = [&](const std::string& origin) {
    HttpResponse response;
    response.origin = origin;
    return client.ShownHost(response);
  };
  EXPECT_EQ(shown("https://cdn.example.org:443"), "https://cdn.example.org");
  EXPECT_EQ(shown("http://cdn.example.org:80"), "http://cdn.example.org");
  EXPECT_EQ(shown("https://cdn.example.org:80"), "https://cdn.example.org:80");
  EXPECT_EQ(shown("http://cdn.example.org:8080"), "http://cdn.example.org:8080");
  EXPECT_EQ(shown(hub_.url()), hub_.url());
  EXPECT_EQ(shown(""), hub_.url());
}

TEST_F(HubHostsTest, ARefusalWithoutAReasonMayBeThatOfAProxy) {
  hub_.Fail({.path = "", .times = -1, .status = 403});
  EXPECT_EQ(ErrorOf(Settings()).hint(), "check the token, and the firewall or proxy");
  hub_.ClearFaults();
  hub_.Fail({.path = "", .times = -1, .status = 403, .headers = {"X-Error-Message: no"}});
  EXPECT_EQ(ErrorOf(Settings()).hint(), "check the token");
}

TEST_F(HubHostsTest, AProxyThatRefusesIsAskedOnce) {
  HubServer proxy;
  const auto refuse = [&](int status) {
    proxy.ClearFaults();
    proxy.ForgetRequests();
    proxy.Fail({.path = "",
                .times = -1,
                .status = status,
                .headers = {"Proxy-Authenticate: Basic realm=\"x\""}});
  };
  const std::string with_user = "http://me:secret@127.0.0.1:" + std::to_string(proxy.port());
  for (const std::string& address : {proxy.url(), with_user}) {
    for (const char* scheme : {"http", "https"}) {
      const std::string variable = std::string(scheme) + "_proxy";
      setenv(variable.c_str(), address.c_str(), 1);
      HubSettings settings = Settings();
      settings.endpoint = std::string(scheme) + "://hub.invalid";
      refuse(407);
      const Error error = ErrorOf(settings);
      EXPECT_EQ(error.message(), settings.endpoint + ": the proxy refuses (status 407)");
      EXPECT_EQ(error.hint(), "give the proxy's user and password in " + variable +
                                  ", as http://USER:PASSWORD@HOST:PORT");
      EXPECT_EQ(proxy.requests().size(), 1u);
      unsetenv(variable.c_str());
    }
  }
  // Only the answer to CONNECT is known to be the proxy's own.
  setenv("https_proxy", proxy.url().c_str(), 1);
  HubSettings settings = Settings();
  settings.endpoint = "https://hub.invalid";
  refuse(403);
  const Error error = ErrorOf(settings);
  EXPECT_EQ(error.message(), "https://hub.invalid: the proxy refuses (status 403)");
  EXPECT_NE(error.hint().find("the proxy in https_proxy may not allow this host"),
            std::string::npos)
      << error.hint();
  EXPECT_EQ(proxy.requests().size(), 1u);
  refuse(503);  // may be better the next time
  EXPECT_NE(ErrorOf(settings).message().find("the connection broke off"), std::string::npos);
  EXPECT_EQ(proxy.requests().size(), 6u);
  // It may let the Hub pass, but not the other host.
  refuse(403);
  LeadTo("https://cdn.invalid/x");
  EXPECT_EQ(ErrorOf(Settings()).message(),
            "owner/name at https://cdn.invalid: the proxy refuses (status 403)");
  EXPECT_EQ(proxy.requests().size(), 1u);
  hub_.ClearFaults();
  unsetenv("https_proxy");
  // What the cache has is used all the same.
  Fetch();
  refuse(407);
  setenv("http_proxy", proxy.url().c_str(), 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "note: " + hub_.url() +
                ": the proxy refuses (status 407); the cache has owner/name of commit " + kCommit +
                ", which is used\n");
}

TEST_F(HubHostsTest, AFileWithoutALinkIsComparedWithTheHub) {
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  const std::string path = Fetch() + "/model.safetensors";
  const auto check = [&] {
    hub_.ForgetRequests();
    cdn_.ForgetRequests();
    testing::internal::CaptureStderr();
    EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, Checking()).folder), weights_);
    EXPECT_EQ(hub_.Count("HEAD", std::string(kCommit) + "/model.safetensors"), 1);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(check(), "");
  EXPECT_TRUE(cdn_.requests().empty());
  const std::string note =
      "note: owner/name: model.safetensors in the cache is damaged and is fetched again\n";
  fs::resize_file(path, 60'000);
  EXPECT_EQ(check(), note);
  std::string damaged = weights_;
  damaged[70'000] ^= 1;
  PublishText(path, damaged);
  EXPECT_EQ(Weights(Fetch()), damaged);  // other commands trust the cache
  EXPECT_EQ(check(), note);
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(cdn_.requests().size(), 1u);
  EXPECT_EQ(check(), "");
  // So does a download by patterns. With links the new file is one.
  PublishText(path, damaged);
  unsetenv("HF_HUB_DISABLE_SYMLINKS");
  testing::internal::CaptureStderr();
  EXPECT_EQ(Weights(FetchMatching(kModel, {"*.safetensors"}, Checking()).folder), weights_);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), note);
  EXPECT_TRUE(fs::is_symlink(path));
  for (const std::string& line : Tree(Cache())) EXPECT_FALSE(line.ends_with(".incomplete")) << line;
}

TEST_F(HubHostsTest, AFileThatOnlyTheCacheHasStays) {
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  const std::string path = Fetch() + "/added_tokens.json";
  PublishText(path, "{}");
  testing::internal::CaptureStderr();
  FetchCheckpoint(kModel, kAllParts, Checking());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(ReadFile(path), "{}");
}

TEST_F(HubHostsTest, DamageWithoutALinkIsNotUsedInstead) {
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  const std::string path = Fetch() + "/model.safetensors";
  fs::resize_file(path, 60'000);
  SetFolderRights(root_ + "/hub", fs::perms(0555));
  EXPECT_EQ(RunWithoutRights([&] {
              ExpectError([&] { FetchCheckpoint(kModel, kAllParts, Checking()); },
                          ": Permission denied", "choose the cache of models");
              return HasFailure() ? 1 : 0;
            }),
            0);
  SetFolderRights(root_ + "/hub", fs::perms(0755));
  cdn_.Fail({.path = "/stored/", .times = -1, .status = 503});
  EXPECT_NE(ErrorOf(Checking()).message().find("status 503"), std::string::npos);
  cdn_.ClearFaults();
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, Checking()).folder), weights_);
  // Without an answer nothing is known of the file.
  hub_.Fail({.path = "", .times = -1, .status = 503});
  testing::internal::CaptureStderr();
  EXPECT_EQ(FetchCheckpoint(kModel, kAllParts, Checking()).commit, kCommit);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("which is used"), std::string::npos);
}

TEST_F(HubHostsTest, ABusyHubIsAskedOnceIfAnEarlierCommitIsWhole) {
  Fetch();
  MoveBranch();
  Fetch();
  DeleteFromCache(root_ + "/hub", kModel, kSecond);
  hub_.Fail({.path = "", .times = -1, .status = 503});
  hub_.ForgetRequests();
  EXPECT_EQ(FetchCheckpoint(kModel, kAllParts, Settings()).commit, kCommit);
  EXPECT_EQ(hub_.requests().size(), 1u);
  // What must be fetched is worth more attempts.
  hub_.ForgetRequests();
  ExpectError([&] { FetchMatching(kModel, {"*"}, Settings()); }, "status 503");
  EXPECT_EQ(hub_.requests().size(), 6u);
  fs::remove(Cache() + "/snapshots/" + kCommit + "/model.safetensors");
  hub_.ForgetRequests();
  EXPECT_NE(ErrorOf(Settings()).message().find("status 503"), std::string::npos);
  EXPECT_EQ(hub_.requests().size(), 7u);
}

TEST_F(HubHostsTest, AFoldersNameMeansWhatIsBelow) {
  EXPECT_EQ(Tree(FetchMatching(kModel, {"onnx/"}, Settings()).folder).size(), 1u);
  EXPECT_TRUE(Exists(Cache() + "/snapshots/" + kCommit + "/onnx/model.onnx"));
  ExpectError([&] { FetchMatching(kModel, {"onnx"}, Settings()); }, "no file matches; it has");
}

TEST_F(HubHostsTest, AListThatIsNotThereIsNoFile) {
  hub_.Fail(
      {.path = "/api/", .times = -1, .status = 404, .headers = {"X-Error-Code: EntryNotFound"}});
  EXPECT_EQ(
      ErrorOf(Settings()).message(),
      "owner/name at " + hub_.url() + ": gives no list of files in revision \"" + kCommit + "\"");
}

TEST_F(HubHostsTest, OfflineNamesTheCommitsThatAreThere) {
  Fetch({.config = true});
  MoveBranch();
  Fetch();
  DeleteFromCache(root_ + "/hub", kModel, kSecond);
  setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_EQ(ErrorOf(Settings()).message(),
            "owner/name: no such folder, and no model of this name and revision is in the cache " +
                root_ + "/hub; of this name it has commit " + kCommit + " with config.json");
  fs::remove_all(Cache());
  EXPECT_EQ(
      ErrorOf(Settings()).message(),
      "owner/name: no such folder, and no model of this name is in the cache " + root_ + "/hub");
}

}  // namespace
}  // namespace lathe
