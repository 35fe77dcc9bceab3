// What a checkpoint's name leads to: which files are fetched, and how the cache looks afterwards.
#include <algorithm>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

TEST(HubNamesTest, TellsNamesFromPaths) {
  for (const char* name : {"owner/name", "bert-base-uncased", "a/b.c_d-1", "0/1"}) {
    EXPECT_TRUE(IsModelName(name)) << name;
  }
  for (const char* name : {"", "/a/b", "./a", "a/b/c", "a/", "~/a", "a--b/c", "a/b..c", "-a/b",
                           "a/b-", "a b/c", "a/b.git", ".", "..", "../a"}) {
    EXPECT_FALSE(IsModelName(name)) << name;
  }
}

TEST(HubNamesTest, AddressesArePercentEncoded) {
  EXPECT_EQ(PercentEncoded("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(PercentEncoded("a b/ü", true), "a%20b/%C3%BC");
}

TEST_F(HubTest, FetchesWhatIsNeededAndNoMore) {
  const std::string folder = Fetch();
  EXPECT_EQ(folder, Cache() + "/snapshots/" + kCommit);
  EXPECT_EQ(Weights(folder), weights_);
  const std::string weights_etag = LfsEtag(weights_), vocab_etag = GitEtag("[PAD]\n[UNK]\n"),
                    config_etag = GitEtag("{\"model_type\": \"bert\"}");
  std::vector<std::string> expected;
  for (const char* missing :
       {"added_tokens.json", "data_columns.json", "merges.txt", "sentencepiece.bpe.model",
        "sentencepiece.model", "special_tokens_map.json", "spiece.model", "spm.model",
        "tokenizer.json", "tokenizer_config.json", "vocab.json"}) {
    expected.push_back(std::string(".no_exist/") + kCommit + "/" + missing);
  }
  const std::string snapshot = std::string("snapshots/") + kCommit + "/";
  for (const std::string& etag : {weights_etag, vocab_etag, config_etag}) {
    expected.push_back("blobs/" + etag);
  }
  expected.push_back("refs/main");
  expected.push_back(snapshot + "config.json -> ../../blobs/" + config_etag);
  expected.push_back(snapshot + "model.safetensors -> ../../blobs/" + weights_etag);
  expected.push_back(snapshot + "vocab.txt -> ../../blobs/" + vocab_etag);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(Tree(Cache()), expected);
  EXPECT_EQ(ReadFile(Cache() + "/refs/main"), kCommit);
  EXPECT_TRUE(Exists(root_ + "/hub/CACHEDIR.TAG"));
}

TEST_F(HubTest, AsksOnceForABranchAndNeverForACommit) {
  Fetch();
  hub_.ForgetRequests();
  Fetch();
  EXPECT_EQ(hub_.requests().size(), 1u);
  EXPECT_EQ(hub_.Count("HEAD", "/owner/name/resolve/main/config.json"), 1);
  hub_.ForgetRequests();
  HubSettings settings = Settings();
  settings.revision = kCommit;
  EXPECT_EQ(FetchCheckpoint(kModel, kAllParts, settings).commit, kCommit);
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(HubTest, FoldersWin) {
  fs::create_directories(root_ + "/owner/name");
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  EXPECT_EQ(ResolveCheckpoint(kModel, kAllParts).folder, kModel);
  fs::current_path(before);
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(HubTest, FilesWin) {
  fs::create_directories(root_ + "/owner");
  PublishText(root_ + "/owner/name", "{}");  // as of --config_name bert/config.json
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  EXPECT_EQ(ResolveCheckpoint(kModel, {.config = true}).folder, kModel);
  EXPECT_EQ(ResolveCheckpoint(kModel, {.tokenizer = true}).folder, kModel);
  ExpectError([&] { ResolveCheckpoint(kModel, kAllParts); },
              "owner/name: is a file, not a model's folder", "give the folder");
  fs::current_path(before);
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(HubTest, OfflineMakesNoRequest) {
  setenv("HF_HUB_OFFLINE", "1", 1);
  ExpectError([&] { Fetch(); }, "owner/name: no such folder, and no model of this name is in",
              "HF_HUB_OFFLINE");
  unsetenv("HF_HUB_OFFLINE");
  Fetch({.config = true});
  hub_.ForgetRequests();
  cdn_.ForgetRequests();
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    setenv(name, "true", 1);
    EXPECT_EQ(Fetch({.config = true}), Cache() + "/snapshots/" + kCommit);
    ExpectError([&] { Fetch({.weights = true}); }, "in the cache; it has config.json");
    ExpectError([&] { Fetch({.tokenizer = true}); }, "the tokenizer is not in the cache");
    unsetenv(name);
  }
  EXPECT_TRUE(hub_.requests().empty());
  EXPECT_TRUE(cdn_.requests().empty());
}

TEST_F(HubTest, OfflineSaysThatOnlyTheCacheLacksTheConfiguration) {
  FetchMatching(kModel, {"vocab.txt"}, Settings());
  hub_.Add("o/none", {.files = {{"README.md", {"x"}}}});
  ExpectError([&] { FetchCheckpoint("o/none", {.config = true}, Settings()); },
              "o/none: has no config.json; it has README.md");
  FetchMatching("o/none", {"*"}, Settings());
  setenv("HF_HUB_OFFLINE", "1", 1);
  ExpectError([&] { Fetch(); }, "owner/name: config.json is not in the cache " + Cache(),
              "without HF_HUB_OFFLINE");
  ExpectError([&] { FetchCheckpoint("o/none", {.config = true}, Settings()); },
              "o/none: has no config.json; it has README.md");
  unsetenv("HF_HUB_OFFLINE");
}

TEST_F(HubTest, UsesTheCacheIfTheHubIsOutOfReach) {
  Fetch();
  hub_.Fail({.path = "", .times = -1, .status = 503});
  EXPECT_EQ(Weights(Fetch()), weights_);
  hub_.ClearFaults();
  setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
  EXPECT_EQ(Weights(Fetch()), weights_);
}

TEST_F(HubTest, UsesTheCacheIfTheHubRefuses) {
  Fetch();
  const std::vector<std::vector<std::string>> codes = {
      {}, {"X-Error-Code: RepoNotFound"}, {"X-Error-Code: GatedRepo"}};
  HubSettings by_commit = Settings();
  by_commit.revision = kCommit;
  for (const int status : {401, 403, 404, 410}) {
    for (const std::vector<std::string>& headers : codes) {
      hub_.Fail({.path = "", .times = -1, .status = status, .headers = headers});
      testing::internal::CaptureStderr();
      EXPECT_EQ(Weights(Fetch()), weights_);
      const std::string note = testing::internal::GetCapturedStderr();
      EXPECT_TRUE(note.starts_with("note: owner/name at ")) << note;
      EXPECT_NE(note.find("; the cache has owner/name of commit 1111"), std::string::npos) << note;
      // Nothing notes that this file is missing, so the Hub is asked even for a commit.
      fs::remove(Cache() + "/.no_exist/" + kCommit + "/tokenizer_config.json");
      testing::internal::CaptureStderr();
      EXPECT_EQ(Weights(FetchCheckpoint(kModel, kAllParts, by_commit).folder), weights_);
      // A 404 without a code says no more than that the commit lacks this file.
      const bool is_refused = status != 404 || !headers.empty();
      EXPECT_EQ(testing::internal::GetCapturedStderr().starts_with("note: owner/name at "),
                is_refused);
      hub_.ClearFaults();
    }
  }
}

TEST_F(HubTest, RefusalsStayErrorsWithoutAWholeCache) {
  hub_.Fail({.path = "", .times = -1, .status = 401});
  ExpectError([&] { Fetch(); }, "no such model, or it is private");
  hub_.ClearFaults();
  Fetch({.config = true});
  hub_.Fail({.path = "", .times = -1, .status = 403, .headers = {"X-Error-Code: GatedRepo"}});
  EXPECT_NO_THROW(Fetch({.config = true}));
  ExpectError([&] { Fetch(); }, "the model is gated", "ask for access");
  hub_.ClearFaults();
  Fetch();
  // A revision that is gone is no refusal: the name may be wrong.
  hub_.Fail(
      {.path = "", .times = -1, .status = 404, .headers = {"X-Error-Code: RevisionNotFound"}});
  ExpectError([&] { Fetch(); }, "no revision \"main\"");
}

TEST_F(HubTest, WithoutANetworkAMistypedFolderIsNamed) {
  setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
  ExpectError([] { ResolveCheckpoint("my-modle", kAllParts); },
              "my-modle: no such folder here, and the Hub is out of reach: http://127.0.0.1:1: no "
              "connection",
              "check the network");
}

TEST_F(HubTest, ABranchThatMovesGivesANewSnapshot) {
  const std::string second = "2222222222222222222222222222222222222222";
  Fetch();
  hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\"}"}},
                              {"vocab.txt", {"[PAD]\n"}},
                              {"model.safetensors", {weights_, true}}},
                    .revisions = {{"main", second}, {"v1", kCommit}, {"refs/pr/1", second}}});
  cdn_.ForgetRequests();
  EXPECT_EQ(Fetch(), Cache() + "/snapshots/" + second);
  EXPECT_TRUE(cdn_.requests().empty());  // the weights are the same blob
  EXPECT_EQ(ReadFile(Cache() + "/refs/main"), second);
  HubSettings settings = Settings();
  settings.revision = "refs/pr/1";
  EXPECT_EQ(FetchCheckpoint(kModel, kAllParts, settings).commit, second);
  EXPECT_EQ(ReadFile(Cache() + "/refs/refs/pr/1"), second);
  settings.revision = "v1";
  EXPECT_EQ(FetchCheckpoint(kModel, kAllParts, settings).commit, kCommit);
}

TEST_F(HubTest, PrefersSafetensorsThenBinThenH5) {
  const auto fetched = [&](const std::map<std::string, HubServerFile>& files) {
    hub_.Add("o/n", {.files = files});
    fs::remove_all(root_ + "/hub");
    const std::string folder = FetchCheckpoint("o/n", {.weights = true}, Settings()).folder;
    std::string names;
    for (const auto& line : Tree(folder)) names += line.substr(0, line.find(' ')) + " ";
    return names;
  };
  const HubServerFile x = {"x", true};
  const auto index = [](const std::string& end) {
    return HubServerFile{"{\"weight_map\": {\"a\": \"part-1" + end + "\", \"b\": \"part-2" + end +
                         "\", \"c\": \"part-1" + end + "\"}}"};
  };
  EXPECT_EQ(fetched({{"pytorch_model.bin", x}, {"tf_model.h5", x}}), "pytorch_model.bin ");
  EXPECT_EQ(fetched({{"tf_model.h5", x}}), "tf_model.h5 ");
  EXPECT_EQ(fetched({{"model.safetensors.index.json", index(".safetensors")},
                     {"part-1.safetensors", x},
                     {"part-2.safetensors", x},
                     {"part-3.safetensors", x},
                     {"pytorch_model.bin", x}}),
            "model.safetensors.index.json part-1.safetensors part-2.safetensors ");
  EXPECT_EQ(
      fetched(
          {{"pytorch_model.bin.index.json", index(".bin")}, {"part-1.bin", x}, {"part-2.bin", x}}),
      "part-1.bin part-2.bin pytorch_model.bin.index.json ");
}

TEST_F(HubTest, TokenizerJsonNeedsNoOtherVocabulary) {
  hub_.Add("o/n", {.files = {{"tokenizer.json", {"{}"}},
                             {"vocab.txt", {"a"}},
                             {"tokenizer_config.json", {"{}"}}}});
  const std::string folder = FetchCheckpoint("o/n", {.tokenizer = true}, Settings()).folder;
  EXPECT_EQ(Tree(folder).size(), 2u);
  EXPECT_TRUE(Exists(folder + "/tokenizer.json"));
}

TEST_F(HubTest, FetchesTheColumnsOfATrainingIfTheModelHasThem) {
  const std::string columns = "{\"text_columns\": [\"review\"], \"label_column\": \"stars\"}\n";
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}}, {"data_columns.json", {columns}}}});
  const auto fetch = [&](const CheckpointParts& parts) {
    return FetchCheckpoint("o/n", parts, Settings()).folder + "/data_columns.json";
  };
  EXPECT_FALSE(Exists(fetch({.config = true})));
  setenv("HF_HUB_OFFLINE", "1", 1);  // then they are not there, which is no error
  EXPECT_FALSE(Exists(fetch({.config = true, .columns = true})));
  unsetenv("HF_HUB_OFFLINE");
  EXPECT_EQ(ReadFile(fetch({.config = true, .columns = true})), columns);
  EXPECT_EQ(hub_.Count("GET", "data_columns.json"), 1);
  setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_EQ(ReadFile(fetch({.config = true, .columns = true})), columns);
  unsetenv("HF_HUB_OFFLINE");
}

TEST_F(HubTest, ColumnsThatAModelLacksAreAskedForOnce) {
  Fetch();
  // The list of files tells, which the tokenizer needs anyway.
  EXPECT_EQ(hub_.Count("GET", "/api/models/"), 1);
  EXPECT_EQ(hub_.Count("HEAD", "data_columns.json"), 0);
  // Not all servers have a list.
  fs::remove_all(root_ + "/hub");
  hub_.Fail({.path = "/api/models/", .times = -1, .status = 404});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Weights(Fetch()), weights_);
  EXPECT_EQ(hub_.Count("HEAD", "data_columns.json"), 1);
}

TEST_F(HubTest, FollowsRenamedModels) {
  for (const auto location :
       {HubServerModel::kPath, HubServerModel::kAddress, HubServerModel::kFromHere}) {
    hub_.Add("old-name", {.moved_to = kModel, .location = location});
    const std::string folder = FetchCheckpoint("old-name", kAllParts, Settings()).folder;
    EXPECT_EQ(folder, root_ + "/hub/models--old-name/snapshots/" + kCommit);
    EXPECT_EQ(Weights(folder), weights_);
    fs::remove_all(root_ + "/hub");
    // The list of files is behind a redirect, too.
    EXPECT_EQ(Tree(FetchMatching("old-name", {"*.md"}, Settings()).folder).size(), 1u);
    fs::remove_all(root_ + "/hub");
  }
}

// A server that has the bytes, too, leads to them by an address of its own.
TEST_F(HubTest, BytesMayLieOnTheHubsOwnHost) {
  HubServer hub;
  hub.Add(kModel, {.files = {{"config.json", {"{}"}}, {"model.safetensors", {weights_, true}}}});
  setenv("HF_ENDPOINT", hub.url().c_str(), 1);
  EXPECT_EQ(Weights(Fetch({.config = true, .weights = true})), weights_);
  EXPECT_EQ(hub.Count("HEAD", "/stored/"), 0);
}

TEST_F(HubTest, NeverSendsTheTokenToAnotherHost) {
  hub_.Add("o/private", {.files = {{"config.json", {"{}"}}, {"model.safetensors", {"abc", true}}},
                         .token = "hf_secret"});
  setenv("HF_TOKEN", " hf_secret\n", 1);
  FetchCheckpoint("o/private", {.config = true, .weights = true}, Settings());
  for (const HubRequest& request : hub_.requests()) {
    EXPECT_EQ(request.headers.at("authorization"), "Bearer hf_secret") << request.target;
  }
  EXPECT_FALSE(cdn_.requests().empty());
  for (const HubRequest& request : cdn_.requests()) {
    EXPECT_EQ(request.headers.count("authorization"), 0u) << request.target;
  }
  // A file of the Hub itself, too, may lead elsewhere.
  cdn_.ForgetRequests();
  fs::remove_all(root_ + "/hub");
  hub_.Fail({.path = "config.json",
             .method = "GET",
             .kind = HubFault::kRedirect,
             .text = cdn_.url() + "/stored/" + LfsEtag("abc")});
  try {
    FetchCheckpoint("o/private", {.config = true}, Settings());
  } catch (const Error&) {  // it is another file
  }
  ASSERT_FALSE(cdn_.requests().empty());
  EXPECT_EQ(cdn_.requests()[0].headers.count("authorization"), 0u);
}

TEST_F(HubTest, FindsTheToken) {
  PublishText(root_ + "/token", "from_file\n");
  EXPECT_EQ(ReadHubSettings({}).token, "from_file");
  setenv("HF_TOKEN", "from_variable", 1);
  EXPECT_EQ(ReadHubSettings({}).token, "from_variable");
  EXPECT_EQ(ReadHubSettings({.token = "given"}).token, "given");
  setenv("HF_HUB_OFFLINE", "yes", 1);
  EXPECT_EQ(ReadHubSettings({}).token, "");
  unsetenv("HF_HUB_OFFLINE");
  ExpectError([] { ReadHubSettings({.token = "a\nb"}); }, "a token has letters");
  setenv("HF_ENDPOINT", "huggingface.co", 1);
  ExpectError([] { ReadHubSettings({}); }, "HF_ENDPOINT must begin with https://");
  setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
  setenv("HF_HUB_ETAG_TIMEOUT", "0", 1);
  ExpectError([] { ReadHubSettings({}); }, "must be a number of seconds above 0 but is \"0\"");
  unsetenv("HF_HUB_ETAG_TIMEOUT");
}

TEST_F(HubTest, GoesThroughProxies) {
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}}}});
  setenv("HF_ENDPOINT", "http://hub.invalid", 1);
  setenv("http_proxy", hub_.url().c_str(), 1);
  EXPECT_EQ(FetchCheckpoint("o/n", {.config = true}, Settings()).commit, kCommit);
  unsetenv("http_proxy");
}

TEST_F(HubTest, WorksWithoutLinks) {
  setenv("HF_HUB_DISABLE_SYMLINKS", "1", 1);
  const std::string folder = Fetch();
  EXPECT_FALSE(fs::is_symlink(folder + "/model.safetensors"));
  EXPECT_EQ(Weights(folder), weights_);
}

TEST_F(HubTest, FetchesByPattern) {
  const std::string folder = FetchMatching(kModel, {"*.md", "onnx/*"}, Settings()).folder;
  EXPECT_EQ(Tree(folder).size(), 2u);
  EXPECT_EQ(ReadFile(folder + "/onnx/model.onnx"), "x");
  EXPECT_EQ(fs::read_symlink(folder + "/onnx/model.onnx"), "../../../blobs/" + GitEtag("x"));
  ExpectError([&] { FetchMatching(kModel, {"*.gguf"}, Settings()); }, "no file matches; it has");
}

TEST_F(HubTest, PatternsNeedAListOfFiles) {
  hub_.Fail({.path = "/api/models/", .times = -1, .status = 404});
  // What the cache has of the model is no list of it.
  for (int i = 0; i < 2; ++i) {
    ExpectError([&] { FetchMatching(kModel, {"*.json"}, Settings()); },
                "owner/name: " + hub_.url() + " gives no list of its files (status 404)",
                "leave out include");
    Fetch();
  }
}

}  // namespace
}  // namespace lathe
