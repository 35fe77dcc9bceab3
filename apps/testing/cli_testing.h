// Runs the built programs on tiny data: a BERT of a few thousand parameters, and sentences in which
// one word decides the label.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lathe {

struct RunResult {
  int exit_code = -1;  // 128 + signal if a signal killed it
  std::string out, err;
};

struct RunOptions {
  std::string input = {};            // standard input
  std::string interrupt_after = {};  // send interrupt_signal once standard output holds this
  int interrupts = 1;                // how many times to send it
  std::chrono::milliseconds interrupt_pause{1};  // the time between two of them
  int interrupt_signal = SIGINT;
  bool close_output = false;     // read no more standard output after the signal
  std::string stdout_path = {};  // the file that standard output goes to instead of RunResult::out
  int64_t max_file_bytes = 0;    // above 0: writing a longer file fails, as on a full disk
};

// Runs a program and waits for its end. `program` is the name of one in apps/, such as "finetune"
// or "lathe_emulated", or a path such as "examples/package_sections".
RunResult RunProgram(const std::string& program, const std::vector<std::string>& args,
                     const RunOptions& options = {});

// Returns the whole standard error of a program that succeeds on the CPU in this precision ("no",
// "bf16"). It is one note if the processor is slow in that precision, else "".
std::string ExpectedNotes(const std::string& mixed_precision);

// Gives each test its own folder with model/ (config.json, vocab.txt), train.csv, dev.csv and
// test.csv. Programs find no configuration of `lathe launch` and no variables of launchers.
class CliTest : public testing::Test {
 protected:
  void SetUp() override;
  ~CliTest() override;

  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const;
  std::string Read(const std::string& name) const;
  nlohmann::json ReadJson(const std::string& name) const;
  bool Exists(const std::string& name) const;
  // Returns the arguments of finetune for a training with fresh weights and all files into the
  // folder `out`, and `more`.
  std::vector<std::string> TrainingArgs(const std::string& out,
                                        const std::vector<std::string>& more) const;
  // Runs finetune with TrainingArgs("out", ...) in one thread and `more`.
  RunResult Train(const std::vector<std::string>& more, const RunOptions& options = {}) const;
  // Returns the values that all steps logged under `key`, from trainer_state.json in the folder
  // `out`.
  std::vector<double> Logged(const std::string& out, const std::string& key) const;
  std::vector<double> Losses(const std::string& out) const { return Logged(out, "loss"); }
  // Changes keys of model/config.json.
  void SetConfig(const nlohmann::json& changes) const;

  std::string root_;
};

// A port that other tests are unlikely to use, below the range that the kernel hands out.
int TestPort();

// Returns how often a test tries each fault: $LATHE_FAULT_ROUNDS, or once.
int FaultRounds();
// Returns the checkpoints that a program's output says are saved, oldest first.
std::vector<std::string> Acknowledged(const std::string& out);

using TestClock = std::chrono::steady_clock;
double SecondsSince(TestClock::time_point start);
// Waits until the condition holds. Returns false if that takes longer than `seconds`.
bool WaitUntil(const std::function<bool()>& condition, double seconds = 30);
// Returns true if the process exists and is no zombie.
bool IsAlive(pid_t process);
// Returns true if the process has ended and its parent knows.
bool IsReaped(pid_t process);

// Runs programs in several processes, on the CPU even if the machine has GPUs.
class LaunchedTest : public CliTest {
 protected:
  // Returns the command line of finetune with TrainingArgs, without progress bars.
  std::vector<std::string> Finetune(const std::string& out,
                                    const std::vector<std::string>& more) const;
  // Runs `lathe launch` with that command line.
  RunResult Launch(int num_processes, const std::vector<std::string>& program,
                   const RunOptions& options = {},
                   const std::vector<std::string>& launch_options = {}) const;
};

// Expects one `error:` line that holds `part`, at most a hint line after it, and the exit code.
void ExpectError(const RunResult& result, const std::string& part, int exit_code = 1);

}  // namespace lathe
