// Ctrl-C in the middle of a download: what people see, and that the same command goes on with it.
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "lathe/apps/testing/hub_cli_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

constexpr char kModel[] = "owner/slow";
const std::string kHowToGoOn =
    "the download of owner/slow was interrupted; what came is kept in the cache, and the same "
    "command goes on with it";

// Runs a program on a terminal of its own. Types `input`, and Ctrl-C once the terminal shows
// `part`.
RunResult RunOnTerminal(const Args& command, const std::string& part,
                        const std::string& input = "") {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    std::vector<char*> argv;
    for (const std::string& arg : command) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  RunResult result;
  EXPECT_EQ(write(terminal, input.data(), input.size()), static_cast<ssize_t>(input.size()));
  bool typed = false;
  char buffer[4096];
  for (ssize_t got; (got = read(terminal, buffer, sizeof buffer)) > 0;) {
    result.out.append(buffer, static_cast<size_t>(got));
    if (!typed && result.out.find(part) != std::string::npos) {
      typed = write(terminal, "\x03", 1) == 1;
    }
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

class HubInterruptTest : public HubCliTest {
 protected:
  void SetUp() override {
    HubCliTest::SetUp();
    ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
    AddFolder(kModel, "out");
    cdn_.SetRate(4);  // the weights take some seconds
  }

  Args FinetuneSlow() const {
    return TrainingArgs("new", {"--num_threads", "1", "--model_name_or_path", kModel,
                                "--config_name", kModel, "--tokenizer_name", kModel});
  }
  static Args Command(const std::string& program, Args args) {
    args.insert(args.begin(), program);
    return args;
  }
  // Returns true once some of the weights have come.
  bool SomeCame() const {
    const std::string blobs = Blobs("models--owner--slow");
    const std::string etag = LfsEtag(Read("out/model.safetensors"));
    if (!fs::exists(blobs)) return false;
    for (const auto& entry : fs::directory_iterator(blobs)) {
      const std::string name = entry.path().filename();
      std::error_code code;
      if (!name.starts_with(etag) || !name.ends_with(".incomplete")) continue;
      if (fs::file_size(entry.path(), code) > 0 && !code) return true;
    }
    return false;
  }
  // Runs a program without a terminal, and sends it SIGINT in the middle of the download.
  RunResult RunAndInterrupt(const Args& command) const {
    fs::remove(Path("pid"));
    std::string line = "echo $$ > " + Path("pid") + "; exec";
    for (const std::string& arg : command) line += " '" + arg + "'";
    RunResult run;
    std::thread program([&] { run = RunProgram("/bin/sh", {"-c", line}); });
    pid_t process = 0;
    EXPECT_TRUE(WaitUntil(
        [&] { return bool(std::ifstream(Path("pid")) >> process) && process > 0 && SomeCame(); }));
    if (process > 0) kill(process, SIGINT);
    program.join();
    return run;
  }
  // Expects that a bar ends with a line break, and that the line about the download follows it.
  static void ExpectBarAndLine(const RunResult& run) {
    EXPECT_EQ(run.exit_code, 128 + SIGINT) << run.out;
    const size_t bar = run.out.rfind("\r\033[K");
    ASSERT_NE(bar, std::string::npos) << run.out;
    const std::string last = run.out.substr(bar);
    EXPECT_TRUE(last.starts_with("\r\033[Kmodel.safetensors: [")) << last;
    const std::string end = "\r\n" + kHowToGoOn + "\r\n";
    EXPECT_TRUE(last.ends_with(end)) << last;
    EXPECT_EQ(last.find('\n'), last.size() - end.size() + 1) << last;
  }
  // Expects that the rest of the weights comes, and nothing twice.
  void ExpectGoesOn(const std::string& program, const Args& args) {
    EXPECT_TRUE(SomeCame());
    cdn_.SetRate(0);
    cdn_.ForgetRequests();
    const RunResult run = RunProgram(program, args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    ASSERT_EQ(cdn_.requests().size(), 1u);
    EXPECT_EQ(cdn_.requests()[0].headers.count("range"), 1u);
    EXPECT_EQ(
        Read("hf/hub/models--owner--slow/snapshots/" + std::string(40, '1') + "/model.safetensors"),
        Read("out/model.safetensors"));
  }
};

TEST_F(HubInterruptTest, TheBarOfDownloadEndsAndALineSaysHowToGoOn) {
  ExpectBarAndLine(RunOnTerminal({"apps/lathe/lathe", "download", kModel}, "model.safetensors: ["));
  ExpectGoesOn("lathe", {"download", kModel});
}

TEST_F(HubInterruptTest, TheBarOfFinetuneEndsAndALineSaysHowToGoOn) {
  ExpectBarAndLine(
      RunOnTerminal(Command("apps/finetune/finetune", FinetuneSlow()), "model.safetensors: ["));
  EXPECT_FALSE(Exists("new"));
  Args again = FinetuneSlow();
  again.insert(again.end(), {"--max_steps", "1"});
  ExpectGoesOn("finetune", again);
}

// The folder that `lathe download` prints goes to scripts, so the line must not go there.
TEST_F(HubInterruptTest, WithoutATerminalTheLineStandsAlone) {
  for (const Args& args : {Args{"download", kModel}, Args{"predict", kModel, "a fine day"}}) {
    fs::remove_all(Path("hf/hub"));
    const RunResult run = RunAndInterrupt(Command("apps/lathe/lathe", args));
    EXPECT_EQ(run.exit_code, 128 + SIGINT);
    EXPECT_EQ(run.out, "");
    // A line for each file that is complete comes before.
    EXPECT_TRUE(run.err.ends_with("\n" + kHowToGoOn + "\n")) << run.err;
    EXPECT_EQ(run.err.find("model.safetensors"), std::string::npos) << run.err;
  }
  ExpectGoesOn("lathe", {"predict", kModel, "a fine day"});
}

TEST_F(HubInterruptTest, AJobSaysItOnce) {
  Args command = {"apps/lathe/lathe",       "launch",        "--cpu", "--num_processes", "2",
                  "apps/finetune/finetune", "--disable_tqdm"};
  const Args slow = FinetuneSlow();
  command.insert(command.end(), slow.begin(), slow.end());
  const RunResult run = RunAndInterrupt(command);
  EXPECT_EQ(run.exit_code, 128 + SIGINT);
  EXPECT_EQ(run.out, kHowToGoOn + "\n");
  EXPECT_EQ(run.err, "");
  EXPECT_FALSE(Exists("new"));
}

// After the download a signal ends the program as before.
TEST_F(HubInterruptTest, LaterSignalsSayNothingOfIt) {
  cdn_.SetRate(0);
  ASSERT_EQ(RunProgram("lathe", {"download", kModel}).exit_code, 0);
  const RunResult run =
      RunOnTerminal({"apps/lathe/lathe", "predict", kModel}, "\"label\":", "a fine day\n");
  EXPECT_EQ(run.exit_code, 128 + SIGINT) << run.out;
  EXPECT_EQ(run.out.find("interrupted"), std::string::npos) << run.out;
}

}  // namespace
}  // namespace lathe
