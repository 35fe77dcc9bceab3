// Runs LaunchProgram in a process of its own, for tests that look at what it prints and when it
// ends.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lathe/distributed/launch/launch.h"

namespace lathe {

inline std::vector<std::string> Script(const std::string& text) { return {"sh", "-c", text}; }

inline LaunchOptions Ranks(int n, const SupervisorOptions& supervisor = {}) {
  return {.num_processes = n, .num_gpus = 0, .supervisor = supervisor};
}

inline std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Removes "(process 123) " from the launcher's lines.
inline std::string WithoutProcesses(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\(process \d+\) )"), "");
}

inline bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// Returns true if the process runs. A zombie doesn't: a process that has ended stays one if its
// parent doesn't wait for it.
inline bool Runs(int process) {
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
    std::filesystem::create_directories(folder_);
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
    std::filesystem::remove_all(folder_);
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

inline std::vector<std::string> Sorted(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace lathe
