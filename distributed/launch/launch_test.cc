#include "lathe/distributed/launch/launch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::vector<std::string> Script(const std::string& text) { return {"sh", "-c", text}; }

LaunchOptions Ranks(int n, const SupervisorOptions& supervisor = {}) {
  return {.num_processes = n, .num_gpus = 0, .supervisor = supervisor};
}

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Removes "(process 123) " from the launcher's lines.
std::string WithoutProcesses(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\(process \d+\) )"), "");
}

bool Eventually(const std::function<bool()>& holds) {
  const auto end = steady_clock::now() + seconds(30);
  while (!holds()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

// Returns true if the process runs. A zombie doesn't: a process that has ended stays one if its
// parent doesn't wait for it.
bool Runs(int process) {
  const std::string stat = ReadAll("/proc/" + std::to_string(process) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

// Runs a launcher in a process of its own and keeps its output in files.
class Launcher {
 public:
  explicit Launcher(const std::function<int()>& launch)
      : folder_(testing::TempDir() + "/launch_" + std::to_string(getpid()) + "_" +
                std::to_string(++count_)) {
    fs::create_directories(folder_);
    process_ = fork();
    if (process_ != 0) return;
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      dup2(open(File(stream).c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), stream);
    }
    int code = 99;
    try {
      code = launch();
    } catch (const std::exception& e) {
      std::cerr << "thrown: " << e.what() << std::endl;
    }
    _exit(code);
  }
  Launcher(const std::vector<std::string>& command, const LaunchOptions& options)
      : Launcher([&] { return LaunchProgram(command, options); }) {}
  ~Launcher() {
    if (process_ > 0) Kill(SIGKILL), Wait();
    fs::remove_all(folder_);
  }

  std::string out() const { return ReadAll(File(STDOUT_FILENO)); }
  std::string err() const { return ReadAll(File(STDERR_FILENO)); }
  void Kill(int signal_number) const { kill(process_, signal_number); }
  // Returns the exit code, or 128 + the signal that ended the launcher.
  int Wait() {
    int status = 0;
    EXPECT_TRUE(Eventually([&] { return waitpid(process_, &status, WNOHANG) != 0; }));
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Waits until standard output has `count` lines. Ranks write each line at once.
  std::vector<std::string> WaitForLines(size_t count) const {
    EXPECT_TRUE(Eventually([&] { return Lines(out()).size() >= count; })) << out() << err();
    return Lines(out());
  }

 private:
  std::string File(int stream) const { return folder_ + "/" + std::to_string(stream); }

  static inline int count_ = 0;
  std::string folder_;
  pid_t process_;
};

std::vector<std::string> Sorted(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(LaunchProgram, NumbersTheRanks) {
  setenv("OMPI_COMM_WORLD_RANK", "5", 1);
  setenv("NCCL_COMM_ID", "10.0.0.1:1", 1);
  setenv("RANK", "7", 1);
  LaunchOptions options = Ranks(2);
  options.num_threads_per_process = 3;
  options.environment = {{"EXTRA", "more"}};
  const std::string print =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $EXTRA "
      "[$OMPI_COMM_WORLD_RANK$NCCL_COMM_ID] $MASTER_PORT $LATHE_JOB_ID";
  Launcher one(Script(print), options);
  EXPECT_EQ(one.Wait(), 0) << one.err();
  const auto lines = Sorted(Lines(one.out()));
  ASSERT_EQ(lines.size(), 2u) << one.out();
  const std::string first = "0 2 0 2 127.0.0.1 3 more [] ", second = "1 2 1 2 127.0.0.1 3 more [] ";
  EXPECT_TRUE(lines[0].starts_with(first)) << lines[0];
  EXPECT_TRUE(lines[1].starts_with(second)) << lines[1];
  EXPECT_EQ(lines[0].substr(first.size()), lines[1].substr(second.size()));
  EXPECT_GT(lines[0].size(), first.size() + 8);

  options.num_processes = 4;
  options.num_machines = 2;
  options.machine_rank = 1;
  options.main_process_ip = "10.1.2.3";
  options.main_process_port = 29511;
  Launcher several(Script(print), options);
  EXPECT_EQ(several.Wait(), 0) << several.err();
  EXPECT_EQ(Sorted(Lines(several.out())),
            (std::vector<std::string>{"2 4 0 2 10.1.2.3 3 more [] 29511 10.1.2.3:29511",
                                      "3 4 1 2 10.1.2.3 3 more [] 29511 10.1.2.3:29511"}));
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "NCCL_COMM_ID", "RANK"}) unsetenv(name);
}

TEST(LaunchProgram, SharesCoresOut) {
  unsetenv("OMP_NUM_THREADS");
  const auto threads = [](int ranks) {
    Launcher launcher(Script("echo $OMP_NUM_THREADS"), Ranks(ranks));
    EXPECT_EQ(launcher.Wait(), 0);
    return Lines(launcher.out());
  };
  EXPECT_EQ(threads(1), std::vector{std::to_string(UsableCores())});
  const int many = UsableCores() + 1;
  EXPECT_EQ(threads(many), std::vector<std::string>(static_cast<size_t>(many), "1"));
  setenv("OMP_NUM_THREADS", "5", 1);
  EXPECT_EQ(threads(1), std::vector<std::string>{"5"});
  unsetenv("OMP_NUM_THREADS");
}

TEST(LaunchProgram, LeavesSignalsAsTheyWere) {
  const std::string print = "grep -E '^Sig(Blk|Ign)' /proc/self/status; cat";  // stdin is empty
  signal(SIGUSR1, SIG_IGN);
  Launcher launcher(Script(print), Ranks(1));
  EXPECT_EQ(launcher.Wait(), 0);
  std::string mine;
  for (const std::string& line : Lines(ReadAll("/proc/self/status"))) {
    if (line.starts_with("SigBlk") || line.starts_with("SigIgn")) mine += line + '\n';
  }
  EXPECT_EQ(launcher.out(), mine);
  signal(SIGUSR1, SIG_DFL);
}

TEST(LaunchProgram, EndsWithTheFirstThatFails) {
  Launcher launcher(Script("if [ $RANK = 1 ]; then sleep 0.2; exit 7; fi; echo $$; exec sleep 99"),
                    Ranks(3, {.notice = milliseconds(100)}));
  const auto others = launcher.WaitForLines(2);
  EXPECT_EQ(launcher.Wait(), 7);
  for (const std::string& other : others) EXPECT_FALSE(Runs(std::stoi(other)));
  // The launcher tells the cause when it has to stop the others, and again at the end.
  EXPECT_EQ(WithoutProcesses(launcher.err()),
            "lathe launch: rank 1 ended with exit code 7; stopping the others\n"
            "lathe launch: the job failed because rank 1 ended with exit code 7\n");
}

TEST(LaunchProgram, TellsTheCauseLast) {
  Launcher launcher(Script("if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 0.3; echo rank 1 is gone "
                           ">&2; exit 3"),
                    Ranks(3, {.patience = seconds(20)}));
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_EQ(
      WithoutProcesses(launcher.err()),
      "rank 1 is gone\nrank 1 is gone\nlathe launch: rank 1 was killed by signal 9 (Killed)\n");
}

TEST(LaunchProgram, ARankThatHasLostAnotherIsNotTheCause) {
  const std::string first =
      "test $RANK = 0 && exit 75; sleep 0.3; test $RANK = 1 && exit 6; exit 75";
  Launcher launcher(Script(first), Ranks(3, {.patience = seconds(20)}));
  EXPECT_EQ(launcher.Wait(), 6);
  EXPECT_EQ(WithoutProcesses(launcher.err()), "lathe launch: rank 1 ended with exit code 6\n");
  // It is the cause after all if no other rank here has failed by itself.
  Launcher lost(Script("test $RANK = 0 && exit 75; exec sleep 99"),
                Ranks(2, {.notice = milliseconds(50)}));
  EXPECT_EQ(lost.Wait(), 75);
  EXPECT_EQ(WithoutProcesses(lost.err()),
            "lathe launch: rank 0 ended with exit code 75, having lost another rank; stopping the "
            "others\n");
}

TEST(LaunchProgram, SaysThatARankHasFollowedASignal) {
  Launcher launcher(Script("exit 143"), Ranks(1));
  EXPECT_EQ(launcher.Wait(), 143);
  EXPECT_EQ(WithoutProcesses(launcher.err()),
            "lathe launch: rank 0 ended with exit code 143, as told by signal 15 (Terminated)\n");
}

TEST(LaunchProgram, NamesTheSignalThatKilledARank) {
  Launcher launcher(Script("if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 99"),
                    Ranks(2, {.notice = milliseconds(100)}));
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_NE(launcher.err().find("was killed by signal 9 (Killed); stopping the others"),
            std::string::npos)
      << launcher.err();
}

TEST(LaunchProgram, BlamesTheOneThatWasKilledOfThoseFoundTogether) {
  Launcher launcher(Script("echo $$; sleep 0.5; test $RANK = 1 && kill -9 $$; exit 3"), Ranks(2));
  const auto ranks = launcher.WaitForLines(2);
  launcher.Kill(SIGSTOP);
  for (const std::string& rank : ranks) {
    EXPECT_TRUE(Eventually([&] { return !Runs(std::stoi(rank)); }));
  }
  launcher.Kill(SIGCONT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(launcher.err().starts_with("lathe launch: rank 1 ")) << launcher.err();
}

TEST(LaunchProgram, LetsTheOthersTellOfADeadPeer) {
  Launcher launcher(
      Script("if [ $RANK = 0 ]; then exit 4; fi; sleep 0.5; echo rank 0 is gone; exit 3"),
      Ranks(2));
  EXPECT_EQ(launcher.Wait(), 4);
  EXPECT_EQ(launcher.out(), "rank 0 is gone\n");
}

TEST(LaunchProgram, OneThatEndsWellEndsAlone) {
  Launcher launcher(Script("if [ $RANK = 0 ]; then exit 0; fi; sleep 0.5; echo done"), Ranks(2));
  EXPECT_EQ(launcher.Wait(), 0);
  EXPECT_EQ(launcher.out(), "done\n");
  EXPECT_EQ(launcher.err(), "");
}

TEST(LaunchProgram, KillsAfterAFailureWhatIgnoresSigterm) {
  Launcher launcher(
      Script("if [ $RANK = 0 ]; then sleep 0.5; exit 4; fi; trap '' TERM; while :; do sleep 1; "
             "done"),
      Ranks(2, {.notice = milliseconds(50), .stop = milliseconds(300)}));
  EXPECT_EQ(launcher.Wait(), 4);
  EXPECT_NE(launcher.err().find("rank 1 did not end within 0.3 s of being told to; it is killed"),
            std::string::npos)
      << launcher.err();
}

TEST(LaunchProgram, PassesSignalsOnAndWaits) {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    Launcher launcher(Script("trap 'sleep 0.3; echo saved $RANK; exit 0' INT TERM HUP; echo ready; "
                             "while :; do sleep 0.05; done"),
                      Ranks(2));
    launcher.WaitForLines(2);
    launcher.Kill(signal_number);
    EXPECT_EQ(launcher.Wait(), 128 + signal_number);
    const auto lines = Sorted(Lines(launcher.out()));
    EXPECT_EQ(lines, (std::vector<std::string>{"ready", "ready", "saved 0", "saved 1"}));
    EXPECT_EQ(launcher.err().find("lathe launch"), std::string::npos) << launcher.err();
  }
}

TEST(LaunchProgram, TellsOfARankThatCrashesWhenItIsToEnd) {
  Launcher launcher(Script("trap 'test $RANK = 1 && kill -ABRT $$; sleep 0.2; exit 0' INT; "
                           "echo ready; while :; do sleep 0.05; done"),
                    Ranks(2));
  launcher.WaitForLines(2);
  launcher.Kill(SIGINT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGABRT);
  EXPECT_TRUE(launcher.err().starts_with("lathe launch: rank 1 (process ")) << launcher.err();
  EXPECT_TRUE(launcher.err().ends_with(") was killed by signal 6 (Aborted)\n")) << launcher.err();
}

// The launcher reports a rank that is killed while it ends, as when it needs too much memory to
// save.
TEST(LaunchProgram, TellsOfARankThatIsKilledWhenItIsToEnd) {
  Launcher launcher(Script("trap 'test $RANK = 1 && kill -KILL $$; sleep 0.2; exit 143' TERM; "
                           "echo ready; while :; do sleep 0.05; done"),
                    Ranks(2));
  launcher.WaitForLines(2);
  launcher.Kill(SIGTERM);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(launcher.err().ends_with(") was killed by signal 9 (Killed)\n")) << launcher.err();
}

// A rank that still computes is not killed at once: it may be saving what is left.
TEST(LaunchProgram, KillsAfterAFailureNoneThatWorks) {
  const SupervisorOptions times = {
      .grace = std::chrono::seconds(20), .notice = milliseconds(100), .stop = milliseconds(300)};
  Launcher launcher(Script("test $RANK = 0 && exit 3; trap '' TERM; i=0; "
                           "while test $i -lt 600000; do i=$((i + 1)); done; echo saved"),
                    Ranks(2, times));
  EXPECT_EQ(launcher.Wait(), 3);
  EXPECT_EQ(launcher.out(), "saved\n");
}

TEST(LaunchProgram, KillsAfterTheGraceWhatWorksForEver) {
  const SupervisorOptions times = {
      .grace = milliseconds(800), .notice = milliseconds(100), .stop = milliseconds(300)};
  Launcher launcher(Script("test $RANK = 0 && exit 3; trap '' TERM; while :; do :; done"),
                    Ranks(2, times));
  EXPECT_EQ(launcher.Wait(), 3);
  EXPECT_NE(launcher.err().find("rank 1 did not end within 0.8 s of being told to; it is killed"),
            std::string::npos)
      << launcher.err();
}

TEST(LaunchProgram, TellsOfARankThatFailsWhenItIsToEnd) {
  Launcher launcher(Script("trap 'test $RANK = 1 && exit 7; sleep 0.2; exit 130' INT; "
                           "echo ready; while :; do sleep 0.05; done"),
                    Ranks(2));
  launcher.WaitForLines(2);
  launcher.Kill(SIGINT);
  EXPECT_EQ(launcher.Wait(), 7);
  EXPECT_TRUE(launcher.err().starts_with("lathe launch: rank 1 (process ")) << launcher.err();
  EXPECT_TRUE(launcher.err().ends_with(") ended with exit code 7\n")) << launcher.err();
}

TEST(LaunchProgram, ASecondSignalReachesTheRanksToo) {
  Launcher launcher(Script("trap 'n=x$n; echo got $n; test $n = xx && exit 130' INT; echo ready; "
                           "while :; do sleep 0.05; done"),
                    Ranks(1));
  launcher.WaitForLines(1);
  launcher.Kill(SIGINT);
  launcher.WaitForLines(2);
  launcher.Kill(SIGINT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGINT);
  EXPECT_EQ(launcher.out(), "ready\ngot x\ngot xx\n");
}

TEST(LaunchProgram, TheThirdSignalKills) {
  Launcher launcher(Script("trap '' INT; echo ready; while :; do sleep 0.05; done"), Ranks(2));
  launcher.WaitForLines(2);
  for (int i = 0; i < 5; ++i) launcher.Kill(SIGINT);  // a key that is held down
  for (int i = 0; i < 2; ++i) {
    std::this_thread::sleep_for(milliseconds(2000));
    launcher.Kill(SIGINT);
  }
  EXPECT_EQ(launcher.Wait(), 128 + SIGINT);
  EXPECT_EQ(launcher.err(),
            "lathe launch: ranks 0, 1 did not end, and this is the third signal; they are "
            "killed\n");
}

// Rank 0 has lost rank 1, which hangs, and has saved what is left. Rank 1 is killed long before
// `grace` is over.
TEST(LaunchProgram, KillsSoonAfterASignalWhatHangs) {
  const SupervisorOptions times = {.grace = std::chrono::seconds(20), .stop = milliseconds(300)};
  Launcher launcher(Script("test $RANK = 0 && trap 'exit 75' TERM || trap '' TERM; echo ready; "
                           "while :; do sleep 1; done"),
                    Ranks(2, times));
  launcher.WaitForLines(2);
  launcher.Kill(SIGTERM);
  EXPECT_EQ(launcher.Wait(), 128 + SIGTERM);
  EXPECT_TRUE(launcher.err().ends_with(
      "lathe launch: rank 1 did not end, though another one has, having lost a rank; it is "
      "killed\n"))
      << launcher.err();
}

TEST(LaunchProgram, KillsAfterTheGraceWhatIgnoresSigterm) {
  Launcher launcher(Script("trap '' TERM; echo $$; while :; do sleep 1; done"),
                    Ranks(2, {.grace = milliseconds(300)}));
  const auto ranks = launcher.WaitForLines(2);
  launcher.Kill(SIGTERM);
  EXPECT_EQ(launcher.Wait(), 128 + SIGTERM);
  for (const std::string& rank : ranks) EXPECT_FALSE(Runs(std::stoi(rank)));
  EXPECT_EQ(launcher.err(),
            "lathe launch: ranks 0, 1 did not end within 0.3 s of being told to; they are "
            "killed\n");
}

TEST(LaunchProgram, EndsThoughNobodyReadsItsOutput) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string id_file = testing::TempDir() + "/yes_" + std::to_string(getpid());
  Launcher launcher([&] {
    dup2(ends[1], STDOUT_FILENO);
    return LaunchProgram(Script("echo $$ > " + id_file + "; exec yes"),
                         Ranks(1, {.stop = milliseconds(200), .tag_output = true}));
  });
  ASSERT_TRUE(Eventually([&] { return ReadAll(id_file).ends_with('\n'); }));
  const int rank = std::stoi(ReadAll(id_file));
  // `yes` sleeps once it has filled every pipe on the way.
  EXPECT_TRUE(Eventually([&] {
    const std::string stat = ReadAll("/proc/" + std::to_string(rank) + "/stat");
    return stat.find("(yes) S") != std::string::npos;
  }));
  launcher.Kill(SIGTERM);
  EXPECT_EQ(launcher.Wait(), 128 + SIGTERM);
  EXPECT_FALSE(Runs(rank));
  close(ends[0]);
  close(ends[1]);
  fs::remove(id_file);
}

TEST(LaunchProgram, DoesWithoutStandardStreams) {
  for (const bool tag_output : {false, true}) {
    Launcher launcher([&] {
      close(STDIN_FILENO);
      close(STDOUT_FILENO);
      return LaunchProgram(Script("echo lost; echo kept >&2"),
                           Ranks(2, {.tag_output = tag_output}));
    });
    EXPECT_EQ(launcher.Wait(), 0);
    const std::vector<std::string> lines = Sorted(Lines(launcher.err()));
    EXPECT_EQ(lines, tag_output ? (std::vector<std::string>{"[0] kept", "[1] kept"})
                                : (std::vector<std::string>{"kept", "kept"}));
  }
}

TEST(LaunchProgram, OutlivesTheTerminalUnderNohup) {
  Launcher launcher([] {
    signal(SIGHUP, SIG_IGN);
    return LaunchProgram(Script("echo ready; sleep 0.5; echo done"), Ranks(1));
  });
  launcher.WaitForLines(1);
  launcher.Kill(SIGHUP);
  EXPECT_EQ(launcher.Wait(), 0);
  EXPECT_EQ(launcher.out(), "ready\ndone\n");
}

TEST(LaunchProgram, NoRankOutlivesAKilledLauncher) {
  Launcher launcher(Script("echo $$; exec sleep 99"), Ranks(3));
  const auto ranks = launcher.WaitForLines(3);
  for (const std::string& rank : ranks) EXPECT_TRUE(Runs(std::stoi(rank)));
  launcher.Kill(SIGKILL);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  for (const std::string& rank : ranks) {
    EXPECT_TRUE(Eventually([&] { return !Runs(std::stoi(rank)); })) << rank;
  }
}

// A rank that is a script dies with the launcher, and so must the processes that it has started.
TEST(LaunchProgram, NothingThatARankHasStartedOutlivesAKilledLauncher) {
  Launcher launcher(Script("sleep 99 & echo $!; wait; echo done"), Ranks(3));
  const auto started = launcher.WaitForLines(3);
  for (const std::string& process : started) EXPECT_TRUE(Runs(std::stoi(process)));
  launcher.Kill(SIGKILL);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  for (const std::string& process : started) {
    EXPECT_TRUE(Eventually([&] { return !Runs(std::stoi(process)); })) << process;
  }
}

TEST(LaunchProgram, EndsWhatARankLeavesBehind) {
  Launcher launcher(Script("sleep 99 & echo $!"), Ranks(2));
  EXPECT_EQ(launcher.Wait(), 0);
  const auto left = Lines(launcher.out());
  ASSERT_EQ(left.size(), 2u);
  for (const std::string& process : left) {
    EXPECT_TRUE(Eventually([&] { return !Runs(std::stoi(process)); })) << process;
  }
}

}  // namespace
}  // namespace lathe
