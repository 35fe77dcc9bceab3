// Runs the built programs on tiny data: a BERT of a few thousand parameters and sentences of which
// one word decides the label.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lathe {

struct RunResult {
  int exit_code = -1;  // 128 + signal if one killed it
  std::string out, err;
};

struct RunOptions {
  std::string input = {};            // standard input
  std::string interrupt_after = {};  // send SIGINT once standard output holds this
  int interrupts = 1;                // as many times
  int interrupt_signal = SIGINT;     // or another signal
  bool close_output = false;         // read no more standard output from then on
  std::string stdout_path = {};      // where standard output goes instead of RunResult::out
  int64_t max_file_bytes = 0;        // above 0: a longer file can't be written, as on a full disk
};

// `program` is the name of one in apps/, such as "finetune" or "lathe_emulated", or a path such as
// "examples/package_sections".
RunResult RunProgram(const std::string& program, const std::vector<std::string>& args,
                     const RunOptions& options = {});

// What a program prints on standard error, and nothing else, when it computes on the CPU in that
// precision ("no", "bf16"): one line where the processor is slow in it, else nothing.
std::string ExpectedNotes(const std::string& mixed_precision);

// A folder of its own for each test, with model/ (config.json, vocab.txt), train.csv, dev.csv and
// test.csv.
class CliTest : public testing::Test {
 protected:
  void SetUp() override;
  ~CliTest() override;

  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const;
  std::string Read(const std::string& name) const;
  nlohmann::json ReadJson(const std::string& name) const;
  bool Exists(const std::string& name) const;
  // finetune with fresh weights, training files, --output_dir out and a seed, and `more`.
  RunResult Train(const std::vector<std::string>& more, const RunOptions& options = {}) const;
  // Changes keys of model/config.json.
  void SetConfig(const nlohmann::json& changes) const;

  std::string root_;
};

// A port that other tests are not likely to use, below those that the kernel gives out.
int TestPort();

// How often a test of faults tries each: $LATHE_FAULT_ROUNDS, or once.
int FaultRounds();

using TestClock = std::chrono::steady_clock;
double SecondsSince(TestClock::time_point start);
// False if it takes longer than that.
bool WaitUntil(const std::function<bool()>& condition, double seconds = 30);
// Whether the process is there and is no zombie.
bool IsAlive(pid_t process);

// Programs in several processes, on the CPU whatever the machine has.
class LaunchedTest : public CliTest {
 protected:
  void SetUp() override;
  // finetune as a command: with fresh weights, all files, --do_train and --output_dir `out`, and
  // `more`.
  std::vector<std::string> Finetune(const std::string& out,
                                    const std::vector<std::string>& more) const;
  // `lathe launch` of that command.
  RunResult Launch(int num_processes, const std::vector<std::string>& program,
                   const RunOptions& options = {},
                   const std::vector<std::string>& launch_options = {}) const;
  // The losses of all steps, as trainer_state.json has them.
  std::vector<double> Losses(const std::string& out) const;
};

// Expects one `error:` line that holds `part`, at most a hint after it, and the exit code.
void ExpectError(const RunResult& result, const std::string& part, int exit_code = 1);

}  // namespace lathe
