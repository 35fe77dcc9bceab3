// Reads the files of a fuzzer's corpus, and what comes of them by cutting and by simple changes.
// Files that begin with ok_ must be read, and those with bad_ must be refused. Every input must be
// read or refused within ten seconds and 2 GB.
//
// LATHE_FUZZ_CORPUS names the folder. LATHE_FUZZ_RUNS is the number of changed inputs.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/mutations.h"

namespace lathe::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr rlim_t kMostMemory = rlim_t{2} << 30;
constexpr unsigned int kMostSeconds = 10;
constexpr size_t kMostPrefixes = 4096;  // of one file
constexpr int64_t kUsualRuns = 2000;

// The input that is being read, and where it goes if reading it ends the process.
std::string_view current;
std::string finding;

std::string FindingPath() {
  const char* const kept = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  return std::string(kept != nullptr ? kept : "/tmp") + "/finding";
}

// Keeps the input that has ended the process.
void KeepInput(int signal_number) {
  FILE* const file = std::fopen(finding.c_str(), "wb");
  if (file != nullptr) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
  }
  const std::string message = "\nsignal " + std::to_string(signal_number) +
                              (signal_number == SIGALRM ? ", too slow" : "") +
                              "; the input is in " + finding + "\n";
  if (write(STDERR_FILENO, message.data(), message.size()) < 0) _exit(1);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

// Limits memory, and handles signals, on a stack of their own: a reader may use up its stack.
class Limits : public testing::Environment {
 public:
  void SetUp() override {
    finding = FindingPath();
    static std::vector<char> stack(1 << 18);
    const stack_t alternative = {.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
    ASSERT_EQ(sigaltstack(&alternative, nullptr), 0);
    struct sigaction action = {};
    action.sa_handler = KeepInput;
    action.sa_flags = SA_ONSTACK;
    std::vector<int> signals = {SIGALRM};
#ifndef __SANITIZE_ADDRESS__  // it has handlers of its own, and reserves far more memory
    signals.insert(signals.end(), {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT});
    const rlimit memory = {.rlim_cur = kMostMemory, .rlim_max = kMostMemory};
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &memory), 0);
#endif
    for (const int number : signals) ASSERT_EQ(sigaction(number, &action, nullptr), 0);
  }
};
const auto* const limits = testing::AddGlobalTestEnvironment(new Limits);

// Returns the reason if the reader refuses the input. Reports all that is no refusal.
std::optional<std::string> Refusal(std::string_view input, const std::string& name) {
  current = input;
  std::optional<std::string> reason;
  std::string fault;
  alarm(kMostSeconds);
  try {
    ReadInput(input);
  } catch (const Error& e) {
    reason = e.message();
    if (reason->empty()) fault = "an error without a message";
  } catch (const std::exception& e) {
    fault = std::string("an exception that is no lathe::Error: ") + e.what();
  }
  alarm(0);
  if (!fault.empty()) {
    WriteFileAtomically(finding, input);
    ADD_FAILURE() << name << ": " << fault << "; the input is in " << finding;
  }
  return reason;
}

std::map<std::string, std::string> Corpus() {
  std::map<std::string, std::string> files;
  const char* const folder = std::getenv("LATHE_FUZZ_CORPUS");
  for (const auto& entry : fs::directory_iterator(folder == nullptr ? "" : folder))
    files[entry.path().filename()] = ReadFile(entry.path());
  return files;
}

TEST(CorpusTest, FilesAreReadOrRefused) {
  int read = 0;
  for (const auto& [name, input] : Corpus()) {
    const std::optional<std::string> reason = Refusal(input, name);
    if (name.starts_with("ok_")) {
      EXPECT_FALSE(reason) << name << " must be read, but: " << *reason;
      ++read;
    } else {
      ASSERT_TRUE(name.starts_with("bad_")) << name << ": begin the name with ok_ or bad_";
      EXPECT_TRUE(reason) << name << " must be refused";
    }
  }
  EXPECT_GT(read, 0) << "without a file ok_*, nobody knows whether the fuzzer reaches the reader";
}

// Returns the number of changed inputs to try. 0 stands for readers that are given sound files
// only.
int64_t Runs() {
  const char* const given = std::getenv("LATHE_FUZZ_RUNS");
  return given != nullptr ? std::atoll(given) : kUsualRuns;
}

TEST(CorpusTest, CutFilesAreReadOrRefused) {
  if (Runs() == 0) GTEST_SKIP() << "this reader is given sound files only";
  for (const auto& [name, input] : Corpus()) {
    const size_t stride = 1 + input.size() / kMostPrefixes;
    for (size_t size = 0; size < input.size() && !HasFailure(); size += stride) {
      Refusal(std::string_view(input).substr(0, size),
              name + ", cut after " + std::to_string(size) + " bytes");
    }
  }
}

TEST(CorpusTest, ChangedFilesAreReadOrRefused) {
  const int64_t runs = Runs();
  if (runs == 0) GTEST_SKIP() << "this reader is given sound files only";
  std::vector<std::string> inputs;
  for (auto& [name, input] : Corpus()) inputs.push_back(input);
  ASSERT_FALSE(inputs.empty());
  std::mt19937_64 random(20250604);
  for (int64_t run = 0; run < runs && !HasFailure(); ++run)
    Refusal(Mutate(inputs, random), "changed input " + std::to_string(run));
}

}  // namespace
}  // namespace lathe::fuzz
