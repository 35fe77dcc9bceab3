// How downloads survive a bad network and bad servers.
#include <absl/strings/ascii.h>

#include <chrono>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

TEST_F(HubTest, SurvivesCutsAtEveryKilobyte) {
  for (int64_t at = 0; at < 100'000; at += 1000) {
    cdn_.Fail({.path = "/stored/", .kind = HubFault::kCut, .at = 1000});
  }
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(cdn_.Count("GET", "/stored/"), 100);
}

TEST_F(HubTest, GoesOnWhereAnEarlierDownloadBrokeOff) {
  Fetch({.config = true});
  for (const char* name : {".incomplete", ".0123abcd.incomplete"}) {
    const std::string blob = Cache() + "/blobs/" + LfsEtag(weights_);
    PublishText(blob + name, weights_.substr(0, 60'000));
    cdn_.ForgetRequests();
    EXPECT_EQ(Weights(Fetch()), weights_);
    ASSERT_EQ(cdn_.requests().size(), 1u);
    EXPECT_EQ(cdn_.requests()[0].headers.at("range"), "bytes=60000-");
    EXPECT_FALSE(Exists(blob + name));
    fs::remove_all(Cache() + "/snapshots");
    fs::remove(blob);
  }
}

TEST_F(HubTest, DamagedBeginningsAreFetchedAgain) {
  Fetch({.config = true});
  const std::string blob = Cache() + "/blobs/" + LfsEtag(weights_);
  PublishText(blob + ".incomplete", std::string(60'000, 'x'));
  EXPECT_EQ(Weights(Fetch()), weights_);
  fs::remove_all(Cache() + "/snapshots");
  PublishText(blob, std::string(10, 'x'));  // a whole blob of another length
  EXPECT_EQ(Weights(Fetch()), weights_);
  fs::remove_all(Cache() + "/snapshots");
  fs::remove(blob);
  PublishText(blob + ".incomplete", std::string(200'000, 'x'));  // longer than the file
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubTest, TakesServersThatIgnoreRanges) {
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kCut, .at = 5000});
  cdn_.Fail({.path = "/stored/", .times = -1, .kind = HubFault::kIgnoreRange});
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubTest, TakesNoWrongRange) {
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kCut, .at = 5000});
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kWrongRange});
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubTest, TriesAgainAfterTransientErrors) {
  for (const int status : {408, 429, 500}) {
    hub_.Fail({.path = "config.json", .status = status});
    hub_.Fail({.path = "/api/", .status = status});
    cdn_.Fail({.path = "/stored/", .status = status});
  }
  for (const int status : {502, 503, 504}) {
    hub_.Fail({.path = "model.safetensors", .status = status});
    hub_.Fail({.path = "vocab.txt", .method = "GET", .status = status});
  }
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kCut, .at = 50'000});
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubTest, GivesUpAfterManyErrors) {
  hub_.Fail({.path = "model.safetensors", .method = "HEAD", .times = -1, .status = 503});
  ExpectError([&] { Fetch(); }, "the server can't answer, status 503, for model.safetensors",
              "try again later");
  hub_.ClearFaults();
  cdn_.Fail(
      {.path = "/stored/", .times = -1, .status = 429, .headers = {"RateLimit: \"api\";r=0;t=0"}});
  ExpectError([&] { Fetch(); }, "too many requests", "wait some minutes");
}

TEST_F(HubTest, WaitsAsLongAsTheServerAsksFor) {
  hub_.Fail({.path = "config.json", .status = 429, .headers = {"RateLimit: \"api\";r=0;t=1"}});
  const auto start = std::chrono::steady_clock::now();
  setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1", 1);  // the note comes all the same
  HubSettings settings = Settings();
  settings.show_waits = ReadHubSettings({}).show_waits;
  testing::internal::CaptureStderr();
  FetchCheckpoint(kModel, {.config = true}, settings);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find(
          "note: owner/name at " + hub_.url() + ": status 429; trying again in 1 s (try 2 of 6)\n"),
      std::string::npos);
}

TEST_F(HubTest, WaitsNoLongerThanAMinute) {
  HubSettings settings = Settings();
  EXPECT_EQ(settings.longest_asked_delay, 60);
  settings.longest_asked_delay = 0.2;
  for (const char* header : {"RateLimit: \"api\";r=0;t=3600", "Retry-After: 3600"}) {
    fs::remove_all(root_ + "/hub");
    hub_.Fail({.path = "config.json", .status = 429, .headers = {header}});
    const auto start = std::chrono::steady_clock::now();
    FetchCheckpoint(kModel, {.config = true}, settings);
    const auto time = std::chrono::steady_clock::now() - start;
    EXPECT_GE(time, std::chrono::milliseconds(200)) << header;
    EXPECT_LT(time, std::chrono::seconds(20)) << header;
  }
}

TEST_F(HubTest, GoesOnAfterStalls) {
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kStall, .at = 40'000});
  EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(cdn_.requests().back().headers.at("range"), "bytes=40000-");
}

TEST_F(HubTest, FetchesDamagedFilesOfTheCacheAgainIfAsked) {
  HubSettings settings = Settings();
  settings.check_cached = true;
  const auto fetch = [&] {
    testing::internal::CaptureStderr();
    const std::string folder = FetchCheckpoint(kModel, kAllParts, settings).folder;
    EXPECT_EQ(Weights(folder), weights_);
    EXPECT_EQ(ReadFile(folder + "/vocab.txt"), "[PAD]\n[UNK]\n");
    return testing::internal::GetCapturedStderr();
  };
  std::string damaged = weights_;
  damaged[70'000] ^= 1;
  const auto damage = [&] {
    PublishText(Cache() + "/blobs/" + LfsEtag(weights_), damaged);
    PublishText(Cache() + "/blobs/" + GitEtag("[PAD]\n[UNK]\n"), "[PAD]\n[UNK]x");
  };
  EXPECT_EQ(fetch(), "");
  hub_.ForgetRequests();
  cdn_.ForgetRequests();
  EXPECT_EQ(fetch(), "");
  EXPECT_EQ(hub_.requests().size(), 1u);  // for the branch
  damage();
  EXPECT_EQ(Weights(Fetch()), damaged);  // reading all bytes at each start would take long
  EXPECT_EQ(cdn_.requests().size(), 0u);
  EXPECT_EQ(fetch(),
            "note: owner/name: vocab.txt in the cache is damaged and is fetched again\n"
            "note: owner/name: model.safetensors in the cache is damaged and is fetched again\n");
  EXPECT_EQ(cdn_.requests().size(), 1u);
  EXPECT_EQ(cdn_.requests().at(0).headers.count("range"), 0u);
  // So does a download by patterns, and one of another commit with the same blob.
  damage();
  const std::string folder = FetchMatching(kModel, {"*.safetensors"}, settings).folder;
  EXPECT_EQ(Weights(folder), weights_);
  damage();
  fs::remove_all(Cache() + "/snapshots");
  EXPECT_EQ(fetch(), "");
  // Without the Hub it is an error.
  damage();
  settings.offline = true;
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
              "vocab.txt: is damaged: its hash is not its name", "is fetched again");
  settings.offline = false;
  settings.endpoint = "http://127.0.0.1:1";
  ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); }, "no connection");
}

TEST_F(HubTest, NamesDamagedFilesOfTheCacheIfTheHubRefuses) {
  HubSettings settings = Settings();
  settings.check_cached = true;
  Fetch();
  const std::string note = "note: " + Cache() + "/snapshots/" + kCommit +
                           "/vocab.txt: is damaged: its hash is not its name\n";
  PublishText(Cache() + "/blobs/" + GitEtag("[PAD]\n[UNK]\n"), "[PAD]\n[UNK]x");
  for (const int status : {403, 503}) {
    hub_.Fail({.path = "", .times = -1, .status = status});
    testing::internal::CaptureStderr();
    ExpectError([&] { FetchCheckpoint(kModel, kAllParts, settings); },
                status == 403 ? "access denied" : "can't answer, status 503");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), note) << status;
    hub_.ClearFaults();
  }
}

TEST_F(HubTest, ComparesLengthAndHash) {
  const std::string blobs = Cache() + "/blobs";
  struct Case {
    HubFault fault;
    const char* message;
  };
  const Case cases[] = {
      {{.path = "/stored/", .kind = HubFault::kWrongBytes, .at = 99'999},
       "is damaged: its hash is"},
      {{.path = "/stored/", .kind = HubFault::kShort, .at = 5}, "should have 100000 bytes but has"},
      {{.path = "/stored/", .kind = HubFault::kLong, .at = 5}, "more bytes than 100000"},
  };
  for (Case c : cases) {
    fs::remove_all(root_ + "/hub");
    c.fault.times = c.fault.kind == HubFault::kShort ? 2 : 1;  // goes away
    cdn_.Fail(c.fault);
    EXPECT_EQ(Weights(Fetch()), weights_) << c.message;
    fs::remove_all(root_ + "/hub");
    c.fault.times = -1;
    cdn_.Fail(c.fault);
    ExpectError([&] { Fetch(); }, c.message);
    cdn_.ClearFaults();
    for (const std::string& line : Tree(blobs)) {
      EXPECT_EQ(line.find(LfsEtag(weights_)), std::string::npos) << line;
    }
    EXPECT_EQ(Weights(Fetch()), weights_);
  }
  // git's hash of small files, too
  fs::remove_all(root_ + "/hub");
  hub_.Fail(
      {.path = "config.json", .method = "GET", .times = 2, .kind = HubFault::kWrongBytes, .at = 3});
  ExpectError([&] { Fetch(); }, "config.json from " + hub_.url() + " is damaged");
}

TEST_F(HubTest, SaysThatAnAnswerEndedEarly) {
  cdn_.Fail({.path = "/stored/", .kind = HubFault::kShort, .at = 5});
  HubSettings settings = Settings();
  settings.first_delay = 1;
  settings.show_waits = true;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "note: owner/name at " + cdn_.url() +
                ": the answer ended early; trying again in 1 s (try 2 of 6)\n");
}

TEST_F(HubTest, HashesMayHaveDigitsOfEitherCase) {
  const std::string weights_etag = absl::AsciiStrToUpper(LfsEtag(weights_));
  const std::string config_etag = absl::AsciiStrToUpper(GitEtag("{\"model_type\": \"bert\"}"));
  const auto give = [&](const char* file, const std::string& etag) {
    hub_.Fail(
        {.path = file, .method = "HEAD", .times = -1, .kind = HubFault::kWrongEtag, .text = etag});
  };
  give("model.safetensors", weights_etag);
  give("config.json", config_etag);
  // A sound file is taken, and its blob has the etag's name.
  const std::string folder = Fetch();
  EXPECT_EQ(Weights(folder), weights_);
  EXPECT_EQ(fs::read_symlink(folder + "/model.safetensors"), "../../blobs/" + weights_etag);
  // A damaged one is refused, whether it comes from the network or lies in the cache.
  std::string damaged = weights_;
  damaged[70'000] ^= 1;
  PublishText(Cache() + "/blobs/" + weights_etag, damaged);
  HubSettings settings = Settings();
  settings.check_cached = true;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, settings).folder), weights_);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "note: owner/name: model.safetensors in the cache is damaged and is fetched again\n");
  fs::remove_all(root_ + "/hub");
  cdn_.Fail({.path = "/stored/", .times = -1, .kind = HubFault::kWrongBytes, .at = 70'000});
  ExpectError([&] { Fetch(); }, " but must be " + weights_etag);
  cdn_.ClearFaults();
  fs::remove_all(root_ + "/hub");
  hub_.Fail({.path = "config.json",
             .method = "GET",
             .times = -1,
             .kind = HubFault::kWrongBytes,
             .at = 3});
  ExpectError([&] { Fetch(); }, " but must be " + config_etag);
}

}  // namespace
}  // namespace lathe
