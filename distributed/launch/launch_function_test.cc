// Tests of Launch with a function, of tagged output, and of what LaunchProgram refuses.
#include <absl/status/status.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <omp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/launch/launch.h"
#include "lathe/distributed/launch/launch_testing.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

struct Output {
  int exit_code = -1;
  std::vector<std::string> out, err;  // lines
};

// Runs `launch` while the standard output and error of this process and its children go to files.
Output Capture(const std::function<int()>& launch) {
  Output output;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  output.exit_code = launch();
  output.out = Lines(testing::internal::GetCapturedStdout());
  output.err = Lines(testing::internal::GetCapturedStderr());
  return output;
}

Error Thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return InvalidArgument("");
}

TEST(Launch, RunsTheFunctionInEachRank) {
  LaunchOptions options = Ranks(3);
  options.num_threads_per_process = 5;
  const Output output = Capture([&] {
    std::cout << "said before\n";
    return Launch(
        [] {
          const ProcessEnvironment env = ReadProcessEnvironment();
          std::ostringstream line;  // printed in one piece
          line << env.rank << " of " << env.world_size << ", " << env.local_rank << " of "
               << env.local_world_size << ", " << omp_get_max_threads() << " threads\n";
          std::cout << line.str();
        },
        3, options);
  });
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_EQ(Sorted(output.out),
            (std::vector<std::string>{"0 of 3, 0 of 3, 5 threads", "1 of 3, 1 of 3, 5 threads",
                                      "2 of 3, 2 of 3, 5 threads", "said before"}));
  EXPECT_EQ(output.err, std::vector<std::string>{});
}

// A socket of another program could otherwise get the port before rank 0 listens there.
TEST(Launch, HoldsThePortForRank0) {
  const Output output = Capture([] {
    return Launch(
        [] {
          const ProcessEnvironment env = ReadProcessEnvironment();
          if (env.rank != 0) return;
          const Socket other(socket(AF_INET, SOCK_STREAM, 0));
          sockaddr_in address{};
          address.sin_family = AF_INET;
          address.sin_port = htons(static_cast<uint16_t>(env.master_port));
          address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          const int result =
              bind(other.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
          std::cout << (result == 0 ? "bound" : std::strerror(errno)) << '\n';
          std::cout << (LocalPort(Listen(env.master_addr, env.master_port)) == env.master_port)
                    << '\n';
        },
        2, Ranks(2));
  });
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_EQ(output.out, (std::vector<std::string>{"Address already in use", "1"}));
  EXPECT_EQ(output.err, std::vector<std::string>{});
}

TEST(Launch, ReportsWhatAFunctionThrows) {
  const Output output = Capture([] {
    return Launch(
        [] {
          if (ReadProcessEnvironment().rank == 1) {
            std::cout << "before" << std::endl;
            throw InvalidArgument("no such\nfile", "look elsewhere");
          }
          throw std::runtime_error("also bad");
        },
        2, Ranks(2));
  });
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(output.out, std::vector<std::string>{"before"});
  for (const char* line :
       {"error: rank 1: no such file", "hint: look elsewhere", "error: rank 0: also bad"}) {
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), line), 1) << line;
  }
}

TEST(Launch, OneTellsThatARankIsLost) {
  for (const bool saved : {false, true}) {
    const Output output = Capture([&] {
      return Launch(
          [&] {
            const std::string rank = getenv("RANK");
            if (rank == "0") _exit(9);
            const Error lost =
                CannotGoOnError("all_reduce", std::stoi(rank), EndedRankProblem(0, ""));
            throw saved ? AddToHint(lost, "; the model is in out") : lost;
          },
          3, Ranks(3));
    });
    EXPECT_EQ(output.exit_code, 9);
    std::vector<std::string> expected;
    if (saved) {
      expected = {"error: rank 1: [all_reduce] rank 1 can't go on: rank 0 has ended",
                  "hint: " + std::string(kLostRankHint) + "; the model is in out"};
    }
    ASSERT_EQ(output.err.size(), expected.size() + 1);
    EXPECT_TRUE(output.err.back().starts_with("lathe launch: rank 0 ")) << output.err.back();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), output.err.begin()));
  }
}

TEST(Launch, OneProcessIsAPlainCall) {
  int calls = 0;
  EXPECT_EQ(Launch([&] { ++calls; }, 1, Ranks(1)), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(getenv("RANK"), nullptr);
  EXPECT_THROW(Launch([] { throw std::runtime_error("out"); }, 1, Ranks(1)), std::runtime_error);
}

TEST(Launch, IsRefusedWhereThereAreThreads) {
  std::mutex mutex;
  mutex.lock();
  std::thread other([&] { std::scoped_lock wait(mutex); });
  const Error error = Thrown([] { Launch([] {}, 2, Ranks(2)); });
  mutex.unlock();
  other.join();
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
#ifdef __SANITIZE_THREAD__
  const int threads = 3;  // the sanitizer has one, too
#else
  const int threads = 2;
#endif
  EXPECT_NE(error.message().find("this process has " + std::to_string(threads) + " threads"),
            std::string::npos);
  EXPECT_NE(error.hint(), "");
}

TEST(TaggedOutput, LinesStayWhole) {
  LaunchOptions options = Ranks(3);
  options.supervisor.tag_output = true;
  constexpr int kLines = 500;
  const Output output = Capture([&] {
    return LaunchProgram({"sh", "-c",
                          "i=0; while [ $i -lt 500 ]; do i=$((i+1)); printf 'line %s ' $i; "
                          "echo of $RANK; done; printf 'no end of %s' $RANK; "
                          "echo trouble of $RANK >&2"},
                         options);
  });
  EXPECT_EQ(output.exit_code, 0);
  ASSERT_EQ(output.out.size(), 3u * (kLines + 1));
  std::map<std::string, int> next;
  for (const std::string& line : output.out) {
    const std::string rank = line.substr(1, 1);
    const int i = ++next[rank];
    const std::string text = i <= kLines ? "line " + std::to_string(i) : "no end";
    ASSERT_EQ(line, "[" + rank + "] " + text + " of " + rank);
  }
  EXPECT_EQ(Sorted(output.err),
            (std::vector<std::string>{"[0] trouble of 0", "[1] trouble of 1", "[2] trouble of 2"}));
}

TEST(TaggedOutput, LongLinesStayWhole) {
  LaunchOptions options = Ranks(2);
  options.supervisor.tag_output = true;
  // Each line is longer than what a pipe holds.
  const Output output = Capture([&] {
    return LaunchProgram(
        {"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; exit $((RANK * 3))"},
        options);
  });
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_EQ(Sorted(output.out), (std::vector<std::string>{"[0] " + std::string(300000, '0'),
                                                          "[1] " + std::string(300000, '1')}));
  ASSERT_EQ(output.err.size(), 1u);
  EXPECT_NE(output.err[0].find("ended with exit code 3"), std::string::npos) << output.err[0];
}

TEST(TaggedOutput, RanksFindOutThatNobodyReads) {
  LaunchOptions options = Ranks(2);
  options.supervisor.tag_output = true;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const int saved = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  const int exit_code = LaunchProgram({"yes"}, options);
  dup2(saved, STDOUT_FILENO);
  close(saved);
  EXPECT_EQ(exit_code, 128 + SIGPIPE);
}

TEST(LaunchProgram, SaysWhoHoldsThePort) {
  const Socket taken = Listen("127.0.0.1", 0);
  LaunchOptions options = Ranks(2);
  options.main_process_port = LocalPort(taken);
  const Error error = Thrown([&] { LaunchProgram({"true"}, options); });
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(error.message().starts_with("port " + std::to_string(LocalPort(taken)) +
                                          " is taken by process " + std::to_string(getpid())))
      << error.message();
  EXPECT_NE(error.hint().find("main_process_port"), std::string::npos);

  options.main_process_ip = "192.0.2.1";  // an address that no machine has (RFC 5737)
  const Error elsewhere = Thrown([&] { LaunchProgram({"true"}, options); });
  EXPECT_NE(elsewhere.message().find("not an address of this machine"), std::string::npos);
  EXPECT_NE(elsewhere.hint().find("main_process_ip"), std::string::npos);
}

TEST(LaunchProgram, RefusesWhatIsNoProgram) {
  const std::string folder = testing::TempDir() + "/programs_" + std::to_string(getpid());
  fs::create_directories(folder);
  const auto write = [&](const char* name, const char* text, int mode) {
    const std::string path = folder + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), static_cast<mode_t>(mode));
    return path;
  };
  const std::string plain = write("plain", "echo hi\n", 0600);
  const std::string no_first_line = write("no_first_line", "echo hi\n", 0700);
  const std::string no_interpreter = write("no_interpreter", "#!/no/such/shell\n", 0700);
  struct Case {
    std::string program, message, hint;
  };
  const Case cases[] = {
      {"no-such-program", "there is no program \"no-such-program\" in PATH", "its name"},
      {folder + "/nothing", "No such file or directory", ""},
      {folder, "is a folder", "name a program"},
      {plain, "is not executable", "chmod +x"},
      {plain + "/below", "Not a directory", ""},
      {"", "there is no program \"\"", ""},
      {no_first_line, "cannot be started: Exec format error", "#!"},
      {no_interpreter, "cannot be started: No such file or directory", "interpreter"},
  };
  for (const Case& c : cases) {
    const Error error = Thrown([&] { LaunchProgram({c.program}, Ranks(2)); });
    EXPECT_NE(error.message().find(c.message), std::string::npos) << error.message();
    EXPECT_NE(error.hint().find(c.hint), std::string::npos) << error.hint();
  }
  fs::remove_all(folder);
}

TEST(CheckLaunchOptions, NamesWhatIsWrong) {
  const auto message = [](LaunchOptions options) {
    return Thrown([&] { CheckLaunchOptions(options); }).message();
  };
  EXPECT_EQ(message({.num_processes = 0}), "num_processes must be from 1 to 1048576 but is 0");
  EXPECT_EQ(message({.num_machines = 0}), "num_machines must be from 1 to 1048576 but is 0");
  EXPECT_EQ(message({.num_processes = 4, .num_machines = 2, .machine_rank = 2}),
            "machine_rank must be from 0 to 1 but is 2");
  EXPECT_EQ(message({.num_processes = 3, .num_machines = 2}),
            "num_processes is 3, which 2 machines can't share evenly");
  EXPECT_EQ(message({.main_process_port = 65536}),
            "main_process_port must be from 0 to 65535 but is 65536");
  EXPECT_EQ(message({.num_processes = 2, .num_machines = 2}),
            "main_process_port must be given if there are several machines");
  EXPECT_EQ(message({.num_processes = 4, .num_gpus = 2}),
            "there are 4 processes but 2 GPUs on this machine");
  EXPECT_EQ(message({.num_threads_per_process = -1}),
            "num_threads_per_process must be from 0 to 1048576 but is -1");
  CheckLaunchOptions({.num_processes = 2, .num_gpus = 2});
}

TEST(VisibleGpus, AreThoseThatTheVariableLeaves) {
  const std::string folder = testing::TempDir() + "/gpus_" + std::to_string(getpid());
  for (const char* gpu : {"0000:1b:00.0", "0000:43:00.0", "0000:52:00.0"}) {
    fs::create_directories(folder + "/" + gpu);
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(VisibleGpus(folder), 3);
  EXPECT_EQ(VisibleGpus(folder + "/none"), 0);
  for (const auto& [value, count] :
       std::map<std::string, int>{{"", 0}, {"-1", 0}, {"2", 1}, {"0,1", 2}, {"0,-1,1", 1}}) {
    setenv("CUDA_VISIBLE_DEVICES", value.c_str(), 1);
    EXPECT_EQ(VisibleGpus(folder), count) << value;
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lathe
