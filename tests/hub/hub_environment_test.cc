// What each environment variable of huggingface_hub does.
#include <chrono>
#include <cstdlib>
#include <optional>

#include "lathe/core/hub/http/http.h"
#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr CheckpointParts kConfigAndWeights = {.config = true, .weights = true};

// Sets a variable as long as it exists.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST_F(HubTest, FoldersComeFromVariables) {
  const Variable home("HOME", root_ + "/home"), part("LATHE_TEST_PART", "part");
  {
    const Variable unset("HF_HOME", ""), xdg("XDG_CACHE_HOME", "");
    EXPECT_EQ(HuggingFaceHome(), root_ + "/home/.cache/huggingface");
    const Variable set("XDG_CACHE_HOME", "~/$LATHE_TEST_PART");
    EXPECT_EQ(HubCacheFolder(""), root_ + "/home/part/huggingface/hub");
  }
  const Variable hf_home("HF_HOME", "/a/${LATHE_TEST_PART}s/$LATHE_TEST_PART");
  EXPECT_EQ(HubCacheFolder(""), "/a/parts/part/hub");
  const Variable old_cache("HUGGINGFACE_HUB_CACHE", "~/old");
  EXPECT_EQ(HubCacheFolder(""), root_ + "/home/old");
  const Variable cache("HF_HUB_CACHE", "/$LATHE_TEST_NONE/${LATHE_TEST_NONE}/${/$/$");
  EXPECT_EQ(HubCacheFolder(""), "/$LATHE_TEST_NONE/${LATHE_TEST_NONE}/${/$/$");
  EXPECT_EQ(ReadHubSettings({.cache_dir = "~/$given"}).cache_dir, root_ + "/home/$given");
}

TEST_F(HubTest, TheTokensFileMayLieElsewhere) {
  PublishText(root_ + "/token", "from_home");
  PublishText(root_ + "/elsewhere", " from_elsewhere\r\n");
  for (const std::string& path : {root_ + "/elsewhere", std::string("~/elsewhere"),
                                  std::string("$LATHE_TEST_FOLDER/elsewhere")}) {
    const Variable home("HOME", root_), folder("LATHE_TEST_FOLDER", root_);
    const Variable token_path("HF_TOKEN_PATH", path);
    EXPECT_EQ(ReadHubSettings({}).token_file, root_ + "/elsewhere");
    EXPECT_EQ(ReadHubSettings({}).token, "from_elsewhere");
  }
  EXPECT_EQ(ReadHubSettings({}).token, "from_home");
  hub_.Add("o/private", {.files = {{"config.json", {"{}"}}}, .token = "from_elsewhere"});
  const Variable none("HF_TOKEN_PATH", root_ + "/none");
  EXPECT_EQ(ReadHubSettings({}).token, "");
  ExpectError([&] { FetchCheckpoint("o/private", {.config = true}, Settings()); },
              "no such model, or it is private", "or the file " + root_ + "/none");
  const Variable there("HF_TOKEN_PATH", root_ + "/elsewhere");
  EXPECT_EQ(FetchCheckpoint("o/private", {.config = true}, Settings()).commit, kCommit);
}

TEST_F(HubTest, TheTokensOldVariableCountsToo) {
  PublishText(root_ + "/token", "from_file");
  const Variable old("HUGGING_FACE_HUB_TOKEN", "from_old_name\n");
  EXPECT_EQ(ReadHubSettings({}).token, "from_old_name");
  {
    const Variable empty("HF_TOKEN", "");
    EXPECT_EQ(ReadHubSettings({}).token, "from_old_name");
    const Variable set("HF_TOKEN", "from_variable");
    EXPECT_EQ(ReadHubSettings({}).token, "from_variable");
  }
  const Variable blank("HF_TOKEN", " \n");
  EXPECT_EQ(ReadHubSettings({}).token, "from_file");
  EXPECT_EQ(ReadHubSettings({.token = "given"}).token, "given");
}

TEST_F(HubTest, OnlyAGivenTokenIsSentIfOthersAreForbidden) {
  const auto sent = [&](const HubOptions& options) {
    fs::remove_all(root_ + "/hub");
    hub_.ForgetRequests();
    FetchCheckpoint(kModel, {.config = true}, ReadHubSettings(options));
    const auto headers = hub_.requests().at(0).headers;
    return headers.count("authorization") > 0 ? headers.at("authorization") : "";
  };
  const HubOptions none = {.show_progress = false};
  const HubOptions given = {.token = "given", .show_progress = false};
  PublishText(root_ + "/token", "from_file");
  for (const char* value : {"0", "no", "off", ""}) {
    const Variable variable("HF_HUB_DISABLE_IMPLICIT_TOKEN", value);
    EXPECT_EQ(sent(none), "Bearer from_file") << value;
  }
  for (const char* value : {"1", "on", "Yes", "TRUE"}) {
    const Variable variable("HF_HUB_DISABLE_IMPLICIT_TOKEN", value);
    EXPECT_EQ(sent(none), "") << value;
    const Variable token("HF_TOKEN", "from_variable"), old("HUGGING_FACE_HUB_TOKEN", "old");
    EXPECT_EQ(sent(none), "") << value;
    EXPECT_EQ(sent(given), "Bearer given") << value;
  }
}

TEST_F(HubTest, TakesTheCertificatesOfTheFirstVariable) {
  if (!MakeCertificate(root_)) GTEST_SKIP() << "there is no openssl here";
  const std::string right = root_ + "/cert.pem", wrong = root_ + "/wrong.pem";
  PublishText(wrong, "no certificate");
  HubServer hub({.certificate = right, .key = root_ + "/key.pem"});
  hub.Add(kModel, {.files = {{"config.json", {"{}"}}, {"model.safetensors", {weights_, true}}}});
  const Variable endpoint("HF_ENDPOINT", hub.url());
  const char* const names[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"};
  const auto refused = [&] {
    hub.ForgetRequests();
    fs::remove_all(root_ + "/hub");
    ExpectError([&] { Fetch(kConfigAndWeights); }, "certificate or its encryption is not accepted",
                "SSL_CERT_FILE");
    EXPECT_TRUE(hub.requests().empty());
  };
  for (const char* const name : names) {
    fs::remove_all(root_ + "/hub");
    const Variable variable(name, right);
    EXPECT_EQ(Weights(Fetch(kConfigAndWeights)), weights_) << name;
    const Variable broken(name, wrong);
    refused();
    const Variable missing(name, root_ + "/none.pem");
    refused();
  }
  for (int i = 0; i < 2; ++i) {
    const Variable first(names[i], wrong), second(names[i + 1], right);
    refused();
  }
}

TEST_F(HubTest, BarsCanBeTurnedOff) {
  const auto printed = [&] {
    fs::remove_all(root_ + "/hub");
    testing::internal::CaptureStderr();
    FetchCheckpoint(kModel, kAllParts, ReadHubSettings({}));
    return testing::internal::GetCapturedStderr();
  };
  for (const char* value : {"", "0", "false"}) {
    const Variable variable("HF_HUB_DISABLE_PROGRESS_BARS", value);
    const std::string text = printed();
    EXPECT_NE(text.find("model.safetensors: 100 kB, "), std::string::npos) << text;
    EXPECT_EQ(text.find('\r'), std::string::npos) << text;  // it is no terminal
  }
  for (const char* value : {"1", "On", "yes", "true"}) {
    const Variable variable("HF_HUB_DISABLE_PROGRESS_BARS", value);
    EXPECT_EQ(printed(), "") << value;
  }
}

TEST_F(HubTest, NoBarsStillTellsOfWaits) {
  const HubSettings no_bars = ReadHubSettings({.show_bars = false});
  EXPECT_FALSE(no_bars.show_progress);
  EXPECT_TRUE(no_bars.show_waits);
  EXPECT_FALSE(ReadHubSettings({.show_progress = false}).show_waits);
  EXPECT_TRUE(ReadHubSettings({}).show_progress);
}

TEST_F(HubTest, AUserOfTheEndpointIsNeverPrinted) {
  EXPECT_EQ(WithoutUser("https://me:pass@host:1/a"), "https://host:1/a");
  EXPECT_EQ(WithoutUser("https://me@host"), "https://host");
  EXPECT_EQ(WithoutUser("https://me:p@/ss@host"), "https://host");
  EXPECT_EQ(WithoutUser("me:pass@host"), "host");
  EXPECT_EQ(WithoutUser("https://host/a"), "https://host/a");
  const std::string port = std::to_string(hub_.port());
  const auto said = [&](const std::string& endpoint, const std::string& expected) {
    const Variable variable("HF_ENDPOINT", endpoint);
    fs::remove_all(root_ + "/hub");
    std::string text = "no error";
    testing::internal::CaptureStderr();
    try {
      HubSettings settings = Settings();
      settings.show_waits = true;
      FetchCheckpoint(kModel, kAllParts, settings);
    } catch (const Error& e) {
      text = e.message() + "\n" + e.hint();
    }
    text += testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    EXPECT_EQ(text.find("secret"), std::string::npos) << text;
    EXPECT_EQ(text.find('@'), std::string::npos) << text;
  };
  const std::string with_user = "http://me:secret@127.0.0.1:" + port;
  said(with_user, "no error");
  said("http://me:secret@127.0.0.1:1", "http://127.0.0.1:1: no connection");
  said("http://me:secret@no host", "\"http://no host\" is no address");
  said("ftp://me:secret@host",
       "HF_ENDPOINT must begin with https:// or http:// but is \"ftp://host");
  said("me:secret@host", "but is \"host\"");
  const auto fails = [&](const HubFault& fault, const std::string& expected) {
    hub_.Fail(fault);
    said(with_user, expected);
    hub_.ClearFaults();
  };
  const std::string shown = hub_.url();
  fails({.path = "", .times = -1, .status = 401}, "at " + shown + ": no such model");
  fails({.path = "", .times = -1, .status = 403, .headers = {"X-Error-Code: GatedRepo"}},
        "ask for access at " + shown + "/owner/name");
  fails({.path = "config.json", .status = 429, .headers = {"Retry-After: 1"}},
        "at " + shown + ": status 429; trying again");
  fails({.path = "config.json", .times = -1, .kind = HubFault::kNoCommit},
        shown + ": the answer for config.json lacks");
  fails({.path = "/api/", .times = -1, .kind = HubFault::kWrongList, .text = "{}"},
        shown + ": the list of the files");
  fails({.path = "", .times = -1, .kind = HubFault::kRedirect, .text = "/x"},
        shown + ": more than 10 redirects");
  fails(
      {.path = "config.json", .method = "GET", .times = -1, .kind = HubFault::kWrongBytes, .at = 3},
      "config.json from " + shown + " is damaged");
}

TEST_F(HubTest, StallsEndAfterTheDownloadsTimeout) {
  EXPECT_EQ(ReadHubSettings({}).download_timeout, 10);
  for (const char* value : {"soon", "-1", "0", "inf", "nan", "1 s"}) {
    const Variable variable("HF_HUB_DOWNLOAD_TIMEOUT", value);
    ExpectError([] { ReadHubSettings({}); },
                "HF_HUB_DOWNLOAD_TIMEOUT must be a number of seconds above 0 but is \"" +
                    std::string(value) + "\"");
  }
  const Variable variable("HF_HUB_DOWNLOAD_TIMEOUT", "0.5");
  HubSettings settings = ReadHubSettings({.show_progress = false});
  settings.first_delay = 0.002;
  EXPECT_EQ(settings.etag_timeout, 10);
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kStall, .at = 40'000});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, std::chrono::milliseconds(500));
  EXPECT_LT(took, std::chrono::seconds(10));
}

// The time until there is a connection has a limit of its own.
TEST_F(HubTest, AConnectionMayTakeLongerThanTheDownloadsTimeout) {
  if (!MakeCertificate(root_)) GTEST_SKIP() << "there is no openssl here";
  HubServer cdn({.certificate = root_ + "/cert.pem",
                 .key = root_ + "/key.pem",
                 .host = "localhost",
                 .tls_delay = 2.5});
  HubServer hub({.cdn = &cdn});
  hub.Add(kModel, {.files = {{"config.json", {"{}"}}, {"model.safetensors", {weights_, true}}}});
  const Variable endpoint("HF_ENDPOINT", hub.url());
  const Variable certificate("SSL_CERT_FILE", root_ + "/cert.pem");
  HubSettings settings = Settings();
  settings.download_timeout = 0.5;
  const CheckpointParts parts = {.config = true, .weights = true};
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, parts, settings).folder), weights_);
  EXPECT_EQ(cdn.Count("GET", "/stored/"), 1);
  // It ends there.
  settings.etag_timeout = 0.3;
  fs::remove_all(root_ + "/hub");
  ExpectError([&] { FetchCheckpoint(kModel, parts, settings); }, "no answer in time");
}

TEST_F(HubTest, MetadataMayTakeAsLongAsTheirTimeoutSays) {
  const Variable variable("HF_HUB_ETAG_TIMEOUT", "20");
  const HubClient client(ReadHubSettings({}), kModel);
  const HttpRequest request = client.MetadataRequest("main", "config.json");
  EXPECT_EQ(request.url, hub_.url() + "/owner/name/resolve/main/config.json");
  EXPECT_EQ(request.connect_timeout, 20);
  EXPECT_EQ(request.total_timeout, 20);
  EXPECT_EQ(request.stall_timeout, 20);
}

TEST_F(HubTest, SomeHostsNeedNoProxy) {
  const Variable proxy("http_proxy", "http://127.0.0.1:1");  // nobody listens there
  ExpectError([&] { Fetch(); }, "no connection");
  {
    const Variable others("no_proxy", "example.org");
    ExpectError([&] { Fetch(); }, "no connection");
  }
  EXPECT_TRUE(hub_.requests().empty());
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    for (const char* value : {"127.0.0.1,localhost", "*"}) {
      fs::remove_all(root_ + "/hub");
      const Variable variable(name, value);
      EXPECT_EQ(Weights(Fetch()), weights_) << name << ' ' << value;
    }
  }
}

}  // namespace
}  // namespace lathe
