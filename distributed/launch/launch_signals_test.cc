// Tests of LaunchProgram: signals, and a launcher that is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "lathe/distributed/launch/launch_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Returns lines of /proc/PID/status, such as "SigIgn:\t0000000080000200", without signals 32
// and 33. The C library keeps these for itself, and ThreadSanitizer's threads change them.
std::string WithoutInternalSignals(const std::string& lines) {
  std::string out;
  for (const std::string& line : Lines(lines)) {
    const size_t tab = line.find('\t');
    const uint64_t signals = std::stoull(line.substr(tab + 1), nullptr, 16);
    out += line.substr(0, tab) + ' ' + std::to_string(signals & ~(uint64_t{3} << 31)) + '\n';
  }
  return out;
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
  EXPECT_EQ(WithoutInternalSignals(launcher.out()), WithoutInternalSignals(mine));
  signal(SIGUSR1, SIG_DFL);
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
      "lathe launch: rank 1 did not end, though another rank has ended because it has lost one; "
      "it is killed\n"))
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

// No rank runs in the pause before a restart. The sixth pause would last 3.2 s.
TEST(LaunchProgram, ASignalEndsThePauseBeforeARestart) {
  const std::pair<int, const char*> signals[] = {{SIGINT, "signal 2 (Interrupt)"},
                                                 {SIGTERM, "signal 15 (Terminated)"}};
  for (const auto& [signal_number, name] : signals) {
    LaunchOptions options = Ranks(1);
    options.max_restarts = 9;
    Launcher launcher(Script("echo start; exit 3"), options);
    EXPECT_TRUE(Eventually([&] {
      return launcher.err().find("restart 6 of 9\n") != std::string::npos;
    })) << launcher.err();
    const auto start = std::chrono::steady_clock::now();
    launcher.Kill(signal_number);
    EXPECT_EQ(launcher.Wait(), 128 + signal_number);
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2500));
    EXPECT_TRUE(launcher.err().ends_with(std::string("restart 6 of 9\nlathe launch: ") + name +
                                         " came before that, so the job is not started again\n"))
        << launcher.err();
    EXPECT_EQ(Lines(launcher.out()).size(), 6u);
  }
}

// Signals are watched for once for all starts, and yet each start leaves them as they were.
TEST(LaunchProgram, ARestartedRankGetsSignalsToo) {
  LaunchOptions options = Ranks(1);
  options.max_restarts = 1;
  Launcher launcher(Script("test -n \"$TORCHELASTIC_RESTART_COUNT\" || exit 3; "
                           "trap 'echo saved; exit 143' TERM; echo ready; "
                           "while :; do sleep 0.05; done"),
                    options);
  launcher.WaitForLines(1);
  launcher.Kill(SIGTERM);
  EXPECT_EQ(launcher.Wait(), 128 + SIGTERM);
  EXPECT_EQ(launcher.out(), "ready\nsaved\n");
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

}  // namespace
}  // namespace lathe
