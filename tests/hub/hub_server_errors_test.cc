// Each thing that can go wrong with a server gives one clear line. Also tests servers that answer
// less than a Hub does.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Some mirrors hold only files. Then each needed file is asked for by its name.
TEST_F(HubTest, ServersWithoutListsOfFiles) {
  const auto fetch_all = [&] { FetchMatching(kModel, {"*"}, Settings()); };
  for (const int status : {400, 404, 405, 410, 501}) {
    fs::remove_all(root_ + "/hub");
    hub_.ClearFaults();
    hub_.ForgetRequests();
    hub_.Fail({.path = "/api/", .times = -1, .status = status});
    EXPECT_EQ(Weights(Fetch()), weights_) << status;
    EXPECT_EQ(hub_.Count("GET", "/api/"), 1) << status;  // it is asked once
    const std::string no_list =
        hub_.url() + " gives no list of its files (status " + std::to_string(status) + ")";
    ExpectError(fetch_all, "owner/name: " + no_list + ", so patterns can't be compared with it",
                "leave out include");
  }
  fs::remove_all(root_ + "/hub");
  hub_.ClearFaults();
  hub_.Fail(
      {.path = "/api/", .times = -1, .kind = HubFault::kRedirect, .text = cdn_.url() + "/login"});
  EXPECT_EQ(Weights(Fetch()), weights_);
  ExpectError(fetch_all, " gives no list of its files (status 30");
  // Others answer with a page of their own.
  fs::remove_all(root_ + "/hub");
  hub_.ClearFaults();
  hub_.Fail({.path = "/api/", .times = -1, .kind = HubFault::kWrongList, .text = "<html></html>"});
  EXPECT_EQ(Weights(Fetch()), weights_);
  ExpectError(fetch_all, " gives no list of its files (status 200), so patterns");
}

// Other servers' answers have none of a Hub's headers if a file is not there.
TEST_F(HubTest, ServersThatSayOnlyThatAFileIsNotThere) {
  hub_.Fail({.path = "/api/", .times = -1, .status = 404});
  hub_.Fail({.path = "/resolve/", .times = -1, .kind = HubFault::kPlain404});
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(hub_.Count("HEAD", "/tokenizer_config.json"), 1);
  // Such an answer is not kept: it may come from a server that has lost all models for a while.
  EXPECT_FALSE(Exists(Cache() + "/.no_exist"));
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(hub_.Count("HEAD", "/tokenizer_config.json"), 2);
  fs::remove_all(root_ + "/hub");
  hub_.ClearFaults();
  hub_.Fail({.path = "", .times = -1, .status = 404});
  HubSettings settings = Settings();
  settings.revision = kCommit;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              "owner/name: has no config.json, and " + hub_.url() + " gives no list of its files");
  hub_.ClearFaults();
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
}

// Nothing notes that such a server's model has no tokenizer.
TEST_F(HubTest, ServersThatSayOnlyThatATokenizerIsNotThere) {
  hub_.Add(kModel, {.files = {{"config.json", {"{}"}}, {"model.safetensors", {weights_, true}}}});
  hub_.Fail({.path = "/api/", .times = -1, .status = 404});
  hub_.Fail({.path = "/resolve/", .times = -1, .kind = HubFault::kPlain404});
  EXPECT_EQ(Weights(Fetch()), weights_);
  HubSettings settings = Settings();
  settings.offline = true;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              "the tokenizer is not in the cache");
}

TEST_F(HubTest, ServersThatRefuseTheListOfFiles) {
  const auto refusal = [&](HubFault fault, const std::string& part) {
    fault.path = "/api/";
    fault.times = -1;
    hub_.ClearFaults();
    hub_.Fail(fault);
    ExpectError([&] { Fetch(); }, "owner/name at " + hub_.url() + ": " + part);
  };
  refusal({.path = "", .status = 400, .headers = {"X-Error-Code: BadRequest"}},
          "the server can't answer, status 400, for the list of files");
  refusal({.path = "", .status = 501, .headers = {"X-Error-Code: NotHere"}},
          "the server can't answer, status 501, for the list of files");
  refusal({.path = "", .status = 403}, "access denied");
  refusal({.path = "", .status = 418},
          "the server can't answer, status 418, for the list of files");
  refusal({.path = "", .status = 500},
          "the server can't answer, status 500, for the list of files");
}

TEST_F(HubTest, NoNetwork) {
  setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
  ExpectError([&] { Fetch(); }, "http://127.0.0.1:1: no connection", "HF_HUB_OFFLINE=1");
  setenv("HF_ENDPOINT", "http://no-such-host.invalid", 1);
  ExpectError([&] { Fetch(); }, "the host's name can't be resolved", "check the network");
  setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
  hub_.Fail({.path = "", .times = -1, .kind = HubFault::kRedirect, .text = "/x"});
  ExpectError([&] { Fetch(); }, "more than 10 redirects");
}

// A server that answers nothing: it lets a client wait, or ends each connection at once.
class MuteServer {
 public:
  explicit MuteServer(bool hangs_up) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_, 64) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::runtime_error("the test server can't listen");
    }
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    if (!hangs_up) return;
    thread_ = std::thread([this] {
      for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) close(fd);
    });
  }
  MuteServer(const MuteServer&) = delete;
  MuteServer& operator=(const MuteServer&) = delete;
  ~MuteServer() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  const std::string& url() const { return url_; }

 private:
  int listener_;
  std::string url_;
  std::thread thread_;
};

TEST_F(HubTest, NoAnswer) {
  const MuteServer silent(/*hangs_up=*/false), rude(/*hangs_up=*/true);
  HubSettings settings = Settings();
  settings.etag_timeout = 0.2;
  settings.endpoint = silent.url();
  const auto start = std::chrono::steady_clock::now();
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              silent.url() + ": no answer in time", "HF_HUB_ETAG_TIMEOUT");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));  // 6 times
  settings.endpoint = rude.url();
  settings.etag_timeout = 10;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              rude.url() + ": the connection broke off", "check the network");
}

TEST_F(HubTest, ListsThatDoNotEnd) {
  HubFault fault = {.path = "/api/", .times = -1, .kind = HubFault::kWrongList};
  fault.text = "[" + std::string(size_t{16} << 20, ' ');
  hub_.Fail(fault);
  ExpectError([&] { Fetch(); }, hub_.url() + ": the answer is too long (more than 16 MiB)",
              "check HF_ENDPOINT");
  EXPECT_EQ(hub_.Count("GET", "/api/"), 1);  // it would be no shorter the next time
  hub_.ClearFaults();
  // A server that always sends a little more.
  fault.text.resize(100'000);
  hub_.Fail(fault);
  hub_.SetRate(1);
  HubSettings settings = Settings();
  settings.download_timeout = 0.1;
  const auto start = std::chrono::steady_clock::now();
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              hub_.url() + ": no answer in time", "HF_HUB_DOWNLOAD_TIMEOUT");
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, std::chrono::seconds(1));  // 5 times 6 timeouts, if none stalls
  EXPECT_LT(took, std::chrono::seconds(50));
  EXPECT_EQ(hub_.Count("GET", "/api/"), 1 + 5);
  hub_.SetRate(0);
}

// Errors of a file are in the headers, so a server that always sends a little more changes nothing.
TEST_F(HubTest, AnswersForFilesThatDoNotEnd) {
  HubSettings settings = Settings();
  settings.download_timeout = 0.5;
  const std::string body(40'000, ' ');
  hub_.SetRate(1);  // takes 40 s
  const auto expect_error = [&](HubFault fault, const std::string& part, int requests) {
    fault.path = "/config.json";
    fault.method = "GET";
    fault.times = -1;
    hub_.Fail(fault);
    hub_.ForgetRequests();
    const auto start = std::chrono::steady_clock::now();
    ExpectError([&] { FetchCheckpoint(kModel, {.config = true}, settings); }, part);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << part;
    EXPECT_EQ(hub_.Count("GET", "/config.json"), requests) << part;
    hub_.ClearFaults();
  };
  expect_error({.path = "", .status = 503, .text = body},
               "the server can't answer, status 503, for config.json", 6);
  expect_error({.path = "", .status = 404, .text = body}, "has no config.json", 1);
  expect_error({.path = "", .status = 302, .text = body, .headers = {"Location: /x"}},
               "has no config.json", 1);
  expect_error({.path = "", .kind = HubFault::kHeaders},
               "no answer in time (its headers did not end)", 6);
  hub_.SetRate(0);
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubTest, NoHubAnswersThere) {
  hub_.Fail({.path = "config.json", .times = -1, .kind = HubFault::kNoCommit});
  ExpectError([&] { Fetch(); }, "lacks the commit, the etag or the size", "check HF_ENDPOINT");
  hub_.ClearFaults();
  hub_.Fail({.path = "/api/", .times = -1, .kind = HubFault::kWrongList, .text = "{\"sha\": 1}"});
  ExpectError([&] { Fetch(); }, "the list of the files of owner/name is no such list");
  hub_.ClearFaults();
  hub_.Fail({.path = "/api/", .times = -1, .status = 404});
  EXPECT_EQ(Weights(Fetch()), weights_);  // without a list each file is asked for
}

TEST_F(HubTest, RefusesPathsThatLeadOut) {
  const HubServerFile index = {"{\"weight_map\": {\"a\": \"../../../../evil.safetensors\"}}"};
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}}, {"model.safetensors.index.json", index}}});
  ExpectError([&] { FetchCheckpoint("o/n", {.weights = true}, Settings()); },
              "\"../../../../evil.safetensors\" must be the name of a .safetensors file beside it");
  hub_.Fail(
      {.path = "config.json", .times = -1, .kind = HubFault::kWrongEtag, .text = "../../../evil"});
  ExpectError([&] { Fetch(); }, "leads out of its folder", "do not use this model");
  hub_.ClearFaults();
  hub_.Fail({.path = "/api/",
             .times = -1,
             .kind = HubFault::kWrongList,
             .text = "{\"sha\": \"" + std::string(kCommit) +
                     "\", \"siblings\": [{\"rfilename\": \"../evil\"}]}"});
  ExpectError([&] { FetchMatching(kModel, {"*"}, Settings()); }, "leads out of its folder");
}

TEST_F(HubTest, CertificateThatNobodyVouchesFor) {
  if (!MakeCertificate(root_)) GTEST_SKIP() << "there is no openssl here";
  HubServer hub({.certificate = root_ + "/cert.pem", .key = root_ + "/key.pem"});
  hub.Add(kModel, {.files = {{"config.json", {"{}"}}, {"model.safetensors", {weights_, true}}}});
  setenv("HF_ENDPOINT", hub.url().c_str(), 1);
  const CheckpointParts parts = {.config = true, .weights = true};
  ExpectError([&] { Fetch(parts); }, "the server's certificate or its encryption is not accepted",
              "SSL_CERT_FILE");
  EXPECT_TRUE(hub.requests().empty());
  setenv("SSL_CERT_FILE", (root_ + "/cert.pem").c_str(), 1);
  EXPECT_EQ(Weights(Fetch(parts)), weights_);
  // From there no redirect may lead to an address without encryption.
  fs::remove_all(root_ + "/hub");
  hub.Fail({.path = "config.json",
            .method = "GET",
            .times = -1,
            .kind = HubFault::kRedirect,
            .text = hub_.url() + "/x"});
  ExpectError([&] { Fetch(parts); }, "leads to an address without encryption");
  // The answer about a file may lead there, too.
  hub.ClearFaults();
  hub.Fail({.path = "model.safetensors",
            .method = "HEAD",
            .times = -1,
            .status = 302,
            .headers = {"X-Repo-Commit: " + std::string(kCommit),
                        "X-Linked-Etag: \"" + LfsEtag(weights_) + "\"",
                        "X-Linked-Size: " + std::to_string(weights_.size()),
                        "Location: " + cdn_.url() + "/stored/" + LfsEtag(weights_)}});
  ExpectError([&] { Fetch(parts); }, "leads to an address without encryption, " + cdn_.url());
  EXPECT_TRUE(cdn_.requests().empty());
  // The cache's commit takes the place of no such answer.
  hub.ClearFaults();
  EXPECT_EQ(Weights(Fetch(parts)), weights_);
  hub.Fail({.path = "config.json",
            .method = "HEAD",
            .times = -1,
            .status = 302,
            .headers = {"X-Repo-Commit: " + std::string(kCommit), "ETag: \"a\"", "X-Linked-Size: 1",
                        "Location: " + cdn_.url() + "/stored/a"}});
  ExpectError([&] { Fetch(parts); }, "leads to an address without encryption, " + cdn_.url());
}

TEST_F(HubTest, CertificateOfAnotherHost) {
  if (!MakeCertificate(root_, "DNS:elsewhere")) GTEST_SKIP() << "there is no openssl here";
  HubServer hub({.certificate = root_ + "/cert.pem", .key = root_ + "/key.pem"});
  setenv("HF_ENDPOINT", hub.url().c_str(), 1);
  setenv("SSL_CERT_FILE", (root_ + "/cert.pem").c_str(), 1);
  ExpectError([&] { Fetch(); }, "the server's certificate or its encryption is not accepted");
  EXPECT_TRUE(hub.requests().empty());
}

}  // namespace
}  // namespace lathe
