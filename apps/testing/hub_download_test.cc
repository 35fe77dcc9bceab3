// `lathe download` and `lathe cache`: what they print, and that no kill breaks the cache.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "lathe/apps/testing/hub_cli_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

TEST_F(HubCliTest, DownloadsListsAndDeletes) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  AddFolder("owner/trained", "out", "hf_secret");
  ExpectError(RunProgram("lathe", {"download", "owner/trained"}),
              "no such model, or it is private");
  const RunResult download =
      RunProgram("lathe", {"download", "owner/trained", "--token", "hf_secret"});
  EXPECT_EQ(download.exit_code, 0) << download.err;
  const std::string commit(40, '1');
  EXPECT_EQ(download.out, Path("hf/hub/models--owner--trained/snapshots/" + commit + "\n"));
  EXPECT_EQ(RunProgram("lathe", {"download", "owner/fresh", "--include", "vocab.*"}).exit_code, 0);
  ExpectError(RunProgram("lathe", {"download", "--include", "*.json", "owner/fresh"}),
              "NAME is missing\nhint: NAME stands before --include\n", 2);
  ExpectError(RunProgram("lathe", {"download"}), "NAME is missing\nhint: usage: ", 2);
  const RunResult list = RunProgram("lathe", {"cache"});
  EXPECT_NE(list.out.find("owner/fresh  "), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("  " + commit + "  "), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("  main\n"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("2 models, "), std::string::npos) << list.out;
  ExpectError(RunProgram("lathe", {"cache", "delete", "owner/fresh", "--revision", "v1"}),
              "owner/fresh: the cache has no revision \"v1\"; it has " + commit);
  ExpectError(RunProgram("lathe", {"cache", "delete", "owner/none"}), "is not in the cache");
  const RunResult deleted =
      RunProgram("lathe", {"cache", "delete", "owner/trained", "--revision", "main"});
  EXPECT_EQ(deleted.exit_code, 0) << deleted.err;
  EXPECT_FALSE(Exists("hf/hub/models--owner--trained"));
  EXPECT_NE(RunProgram("lathe", {"cache"}).out.find("1 model, "), std::string::npos);
}

TEST_F(HubCliTest, PatternsMayBeGivenMoreThanOnce) {
  const RunResult run = RunProgram(
      "lathe", {"download", "owner/fresh", "--include", "vocab.*", "--include=config.json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string folder = "hf/hub/models--owner--fresh/snapshots/" + std::string(40, '1') + "/";
  EXPECT_TRUE(Exists(folder + "vocab.txt"));
  EXPECT_TRUE(Exists(folder + "config.json"));
}

TEST_F(HubCliTest, AnEmptyRevisionDeletesNothing) {
  EXPECT_EQ(RunProgram("lathe", {"download", "owner/fresh", "--include", "vocab.*"}).exit_code, 0);
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--revision", ""}, std::vector<std::string>{"--revision="}}) {
    std::vector<std::string> args = {"cache", "delete", "owner/fresh"};
    args.insert(args.end(), option.begin(), option.end());
    ExpectError(RunProgram("lathe", args),
                "--revision is empty\nhint: name a revision; without --revision the whole model "
                "is deleted\n",
                2);
    EXPECT_TRUE(Exists("hf/hub/models--owner--fresh"));
  }
}

TEST_F(HubCliTest, DownloadRepairsTheCache) {
  const std::vector<std::string> download = {"download", "owner/fresh", "--include", "vocab.*"};
  ASSERT_EQ(RunProgram("lathe", download).exit_code, 0);
  const std::string vocab = Read("model/vocab.txt");
  const std::string blob = "hf/hub/models--owner--fresh/blobs/" + GitEtag(vocab);
  Write(blob, "x" + vocab.substr(1));
  const RunResult run = RunProgram("lathe", download);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(run.err.starts_with(
      "note: owner/fresh: vocab.txt in the cache is damaged and is fetched again\n"))
      << run.err;
  EXPECT_EQ(Read(blob), vocab);
}

TEST_F(HubCliTest, ListsTheCacheWithoutWhatRequestsNeed) {
  EXPECT_EQ(RunProgram("lathe", {"download", "owner/fresh", "--include", "vocab.*"}).exit_code, 0);
  setenv("HF_ENDPOINT", "huggingface.co", 1);
  setenv("HF_HUB_ETAG_TIMEOUT", "0", 1);
  setenv("HF_TOKEN", "a b", 1);
  const RunResult list = RunProgram("lathe", {"cache"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_TRUE(list.out.starts_with("owner/fresh  ")) << list.out;
  const RunResult deleted = RunProgram("lathe", {"cache", "delete", "owner/fresh"});
  EXPECT_EQ(deleted.exit_code, 0) << deleted.err;
  for (const char* name : {"HF_HUB_ETAG_TIMEOUT", "HF_TOKEN"}) unsetenv(name);
  Write("file", "no folder");
  ExpectError(RunProgram("lathe", {"cache", "--cache_dir", Path("file")}),
              Path("file") + ": Not a directory");
}

TEST_F(HubCliTest, KeepsWhatOtherRevisionsNeed) {
  const std::string one(40, '1'), two(40, '2');
  HubServerModel model;
  model.files = {{"config.json", {"{}"}}, {"model.safetensors", {RandomBytes(50'000, 1), true}}};
  model.revisions = {{"v1", one}};
  hub_.Add("o/n", model);
  EXPECT_EQ(RunProgram("lathe", {"download", "o/n", "--revision", "v1"}).exit_code, 0);
  model.files["config.json"] = {"{\"a\": 1}"};
  model.revisions = {{"v2", two}};
  hub_.Add("o/n", model);
  EXPECT_EQ(RunProgram("lathe", {"download", "o/n", "--revision", "v2"}).exit_code, 0);
  const RunResult deleted = RunProgram("lathe", {"cache", "delete", "o/n", "--revision", "111111"});
  EXPECT_EQ(deleted.out, "deleted o/n 111111, 2 B\n") << deleted.err;
  setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_EQ(RunProgram("lathe", {"download", "o/n", "--revision", "v2"}).exit_code, 0);
  ExpectError(RunProgram("lathe", {"download", "o/n", "--revision", "v1"}),
              "no model of this name and revision is in the cache");
}

// Starts `lathe download` and kills it when `wait` returns. Returns true if it was done before.
bool DownloadAndKill(const std::string& name, const std::function<void()>& wait) {
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execl("apps/lathe/lathe", "lathe", "download", name.c_str(), nullptr);
    _exit(127);
  }
  wait();
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << WEXITSTATUS(status);
  return WIFEXITED(status);
}

// Returns when the folder has some bytes of the weights, or after 10 s. Those of config.json, which
// comes first, are fewer than kConfig.
void WaitForPart(const std::string& blobs) {
  constexpr uintmax_t kConfig = 100;
  const TestClock::time_point start = TestClock::now();
  while (SecondsSince(start) < 10) {
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(blobs, code)) {
      const uintmax_t size = entry.file_size(code);
      if (!code && entry.path().extension() == ".incomplete" && size > kConfig) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_F(HubCliTest, KeepsWhatIsBeingDownloaded) {
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}},
                             {"model.safetensors", {RandomBytes(600'000, 3), true}}}});
  cdn_.SetRate(500);  // takes 1.2 s
  RunResult deleted, list;
  DownloadAndKill("o/n", [&] {
    WaitForPart(Blobs("models--o--n"));
    deleted = RunProgram("lathe", {"cache", "delete", "o/n"});
    list = RunProgram("lathe", {"cache"});
  });
  ExpectError(deleted, "o/n: is being downloaded by process ");
  EXPECT_NE(list.out.find("of downloads under way or broken off"), std::string::npos) << list.out;
  EXPECT_EQ(RunProgram("lathe", {"cache", "delete", "o/n"}).exit_code, 0);
}

TEST_F(HubCliTest, SaysForWhichProcessItWaits) {
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}},
                             {"model.safetensors", {RandomBytes(400'000, 3), true}}}});
  cdn_.SetRate(100);  // takes 4 s
  setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1", 1);
  RunResult second;
  DownloadAndKill("o/n", [&] {
    WaitForPart(Blobs("models--o--n"));
    second = RunProgram("lathe", {"download", "o/n"});
  });
  unsetenv("HF_HUB_DISABLE_PROGRESS_BARS");
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(second.err.starts_with("note: waiting for process ")) << second.err;
  EXPECT_TRUE(second.err.ends_with(" (lathe), which fetches model.safetensors of o/n\n"))
      << second.err;
  EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
  EXPECT_EQ(cdn_.Count("GET", "/stored/"), 1);
}

TEST_F(HubCliTest, SurvivesKills) {
  const char* const wanted = std::getenv("LATHE_KILLS");
  const int kills = wanted == nullptr ? 200 : std::atoi(wanted);
  ASSERT_GT(kills, 0) << "LATHE_KILLS must be a number above 0";
  const std::string weights = RandomBytes(600'000, 3);
  std::string etag = LfsEtag(weights);
  hub_.Add("o/n", {.files = {{"config.json", {"{}"}}, {"model.safetensors", {weights, true}}}});
  cdn_.SetRate(20'000);  // takes 30 ms
  // A busy machine needs longer, so kills come within the time of a whole download.
  const TestClock::time_point start = TestClock::now();
  ASSERT_EQ(RunProgram("lathe", {"download", "o/n"}).exit_code, 0);
  const auto most = static_cast<unsigned int>(1.2e6 * SecondsSince(start));
  fs::remove_all(Path("hf/hub"));
  std::mt19937 random(5);
  int killed = 0, resumed = 0;
  for (int i = 0; i < kills; ++i) {
    if (i % 10 == 9) {  // within the file, however fast the machine is
      if (Exists("hf/hub/models--o--n/blobs/" + etag)) fs::remove_all(Path("hf/hub"));
      cdn_.SetRate(2'000);
      killed += !DownloadAndKill("o/n", [&] { WaitForPart(Blobs("models--o--n")); });
      cdn_.SetRate(20'000);
    } else {
      const std::chrono::microseconds time(random() % most);
      killed += !DownloadAndKill("o/n", [time] { std::this_thread::sleep_for(time); });
    }
    // What is there under a final name is whole, at any time.
    if (Exists("hf/hub/models--o--n/blobs/" + etag)) {
      ASSERT_EQ(Read("hf/hub/models--o--n/blobs/" + etag), weights);
    }
    if (i % 5 != 4) continue;  // some downloads are killed several times
    cdn_.ForgetRequests();
    ASSERT_EQ(RunProgram("lathe", {"download", "o/n"}).exit_code, 0);
    for (const HubRequest& request : cdn_.requests()) resumed += request.headers.count("range");
    const std::string snapshot = "hf/hub/models--o--n/snapshots/" + std::string(40, '1');
    ASSERT_EQ(Read(snapshot + "/model.safetensors"), weights);
    for (const auto& entry : fs::directory_iterator(Blobs("models--o--n"))) {
      EXPECT_NE(entry.path().extension(), ".incomplete") << entry.path();
    }
    fs::remove_all(Path("hf/hub"));
  }
  EXPECT_GT(killed, kills / 4);
  EXPECT_GT(resumed, 0);
}

}  // namespace
}  // namespace lathe
