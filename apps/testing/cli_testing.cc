#include "lathe/apps/testing/cli_testing.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "lathe/core/gemm.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWords[] = {"the",  "film",  "plot", "was", "is",    "a",     "very",
                                  "and",  "it",    "we",   "saw", "story", "actor", "scene",
                                  "good", "great", "fine", "bad", "poor",  "dull",  ",",
                                  ".",    "!",     "0",    "1",   "##s"};

// Makes sentences by a fixed generator. The mood word decides the label.
std::string MakeCsv(int rows, uint32_t seed, bool labelled) {
  uint32_t state = seed;
  const auto next = [&](uint32_t n) {
    return (state = state * 1664525u + 1013904223u) / 65536u % n;
  };
  std::string csv = labelled ? "sentence,label\n" : "sentence\n";
  for (int i = 0; i < rows; ++i) {
    const bool positive = next(2) == 1;
    std::string sentence;
    const uint32_t length = 2 + next(6), mood = next(length);
    for (uint32_t w = 0; w < length; ++w) {
      sentence += (w > 0 ? " " : "") +
                  std::string(kWords[w == mood ? (positive ? 14 : 17) + next(3) : next(14)]);
    }
    csv += sentence + (labelled ? positive ? ",positive" : ",negative" : "") + "\n";
  }
  return csv;
}

// A pipe. Ends that are still open are closed with it.
struct Pipe {
  int ends[2];
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
  }
  ~Pipe() {
    Close(0);
    Close(1);
  }
  void Close(int end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
};

// Starts the program with the pipes as its standard input, output and error.
pid_t Start(const std::string& program, const std::vector<std::string>& args,
            const RunOptions& options, const Pipe& in, const Pipe& out, const Pipe& err) {
  // Tests run in the root of their runfiles.
  const bool is_path = program.find('/') != std::string::npos;
  const std::string folder = program.substr(0, program.find("_emulated"));
  const std::string path = is_path ? program : "apps/" + folder + "/" + program;
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  const pid_t pid = fork();
  if (pid != 0) return pid;
  dup2(in.ends[0], STDIN_FILENO);
  dup2(options.stdout_path.empty() ? out.ends[1] : open(options.stdout_path.c_str(), O_WRONLY),
       STDOUT_FILENO);
  dup2(err.ends[1], STDERR_FILENO);
  if (options.max_file_bytes > 0) {
    const rlimit limit = {static_cast<rlim_t>(options.max_file_bytes),
                          static_cast<rlim_t>(options.max_file_bytes)};
    setrlimit(RLIMIT_FSIZE, &limit);  // write fails then, as it does on a full disk
  }
  execv(path.c_str(), argv.data());
  _exit(127);
}

// Reads both pipes until the program has closed them. Sends the signals that the options ask for.
void ReadOutput(pid_t pid, const RunOptions& options, Pipe& out, const Pipe& err,
                RunResult& result) {
  bool interrupted = options.interrupt_after.empty();
  pollfd ready[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
  while (ready[0].fd >= 0 || ready[1].fd >= 0) {
    if (poll(ready, 2, -1) < 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (ready[i].fd < 0 || ready[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(ready[i].fd, buffer, sizeof buffer);
      if (got <= 0) {
        ready[i].fd = -1;  // poll ignores it from now on
      } else {
        (i == 0 ? result.out : result.err).append(buffer, static_cast<size_t>(got));
      }
    }
    if (interrupted || result.out.find(options.interrupt_after) == std::string::npos) continue;
    // Pending signals of one number arrive as one.
    for (int i = 0; i < options.interrupts; ++i) {
      kill(pid, options.interrupt_signal);
      std::this_thread::sleep_for(options.interrupt_pause);
    }
    interrupted = true;
    if (options.close_output) {
      out.Close(0);
      ready[0].fd = -1;
    }
  }
}

}  // namespace

std::string ExpectedNotes(const std::string& mixed_precision) {
  const std::string note = SlowPrecisionNote(mixed_precision, Device{});
  return note.empty() ? "" : "note: " + note + "\n";
}

RunResult RunProgram(const std::string& program, const std::vector<std::string>& args,
                     const RunOptions& options) {
  Pipe in, out, err;
  const pid_t pid = Start(program, args, options, in, out, err);
  in.Close(0);
  out.Close(1);
  err.Close(1);
  signal(SIGPIPE, SIG_IGN);  // a program that ends at once may read no input
  if (write(in.ends[1], options.input.data(), options.input.size()) < 0) in.Close(1);
  in.Close(1);

  RunResult result;
  ReadOutput(pid, options, out, err, result);
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

void CliTest::SetUp() {
  root_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() +
          "_" + std::to_string(getpid());
  fs::create_directories(Path("model"));
  std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const char* word : kWords) vocab += std::string(word) + "\n";
  Write("model/vocab.txt", vocab);
  Write("model/config.json",
        DumpJson(nlohmann::json({{"architectures", {"BertForSequenceClassification"}},
                                 {"model_type", "bert"},
                                 {"vocab_size", 5 + std::size(kWords)},
                                 {"hidden_size", 16},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 2},
                                 {"intermediate_size", 32},
                                 {"hidden_act", "gelu"},
                                 {"hidden_dropout_prob", 0.1},
                                 {"attention_probs_dropout_prob", 0.1},
                                 {"max_position_embeddings", 32},
                                 {"type_vocab_size", 2},
                                 {"initializer_range", 0.02},
                                 {"layer_norm_eps", 1e-12},
                                 {"pad_token_id", 0}})));
  Write("train.csv", MakeCsv(96, 1, true));
  Write("dev.csv", MakeCsv(40, 2, true));
  Write("test.csv", MakeCsv(20, 3, false));
  setenv("HF_HOME", Path("hf").c_str(), 1);
  setenv("HF_HUB_OFFLINE", "1", 1);  // no test asks the real Hub
  for (const char* name : {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_MIXED_PRECISION",
                           "ACCELERATE_USE_CPU", "LATHE_USE_GPU"}) {
    unsetenv(name);
  }
}

CliTest::~CliTest() {
  if (!root_.empty()) fs::remove_all(root_);
}

void CliTest::Write(const std::string& name, const std::string& text) const {
  std::ofstream file(Path(name), std::ios::binary);
  file << text;
  ASSERT_TRUE(file.good()) << name;
}

std::string CliTest::Read(const std::string& name) const {
  std::ifstream file(Path(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json CliTest::ReadJson(const std::string& name) const {
  return ParseJsonOrDiscard(Read(name));
}

bool CliTest::Exists(const std::string& name) const { return fs::exists(Path(name)); }

void CliTest::SetConfig(const nlohmann::json& changes) const {
  nlohmann::json config = ReadJson("model/config.json");
  config.update(changes);
  Write("model/config.json", DumpJson(config));
}

std::vector<std::string> CliTest::TrainingArgs(const std::string& out,
                                               const std::vector<std::string>& more) const {
  std::vector<std::string> args = {"--config_name",
                                   Path("model"),
                                   "--train_file",
                                   Path("train.csv"),
                                   "--validation_file",
                                   Path("dev.csv"),
                                   "--test_file",
                                   Path("test.csv"),
                                   "--output_dir",
                                   Path(out),
                                   "--do_train",
                                   "--logging_steps",
                                   "1",
                                   "--learning_rate",
                                   "1e-2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

RunResult CliTest::Train(const std::vector<std::string>& more, const RunOptions& options) const {
  std::vector<std::string> args = TrainingArgs("out", {"--num_threads", "1"});
  args.insert(args.end(), more.begin(), more.end());
  return RunProgram("finetune", args, options);
}

std::vector<double> CliTest::Logged(const std::string& out, const std::string& key) const {
  std::vector<double> values;
  const nlohmann::json state = ReadJson(out + "/trainer_state.json");
  for (const nlohmann::json& entry : state.at("log_history")) {
    if (entry.contains(key)) values.push_back(entry.at(key));
  }
  return values;
}

double SecondsSince(TestClock::time_point start) {
  return std::chrono::duration<double>(TestClock::now() - start).count();
}

bool WaitUntil(const std::function<bool()>& condition, double seconds) {
  const TestClock::time_point start = TestClock::now();
  while (!condition()) {
    if (SecondsSince(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool IsAlive(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const size_t end = text.rfind(") ");
  return end != std::string::npos && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

bool IsReaped(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

int TestPort() { return 20000 + getpid() % 12000; }

int FaultRounds() {
  const char* rounds = std::getenv("LATHE_FAULT_ROUNDS");
  return rounds == nullptr ? 1 : std::atoi(rounds);
}

std::vector<std::string> Acknowledged(const std::string& out) {
  std::vector<std::string> paths;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    // A killed program may leave half a line at the end.
    if (line.starts_with("saved ") && !lines.eof()) paths.push_back(line.substr(6));
  }
  return paths;
}

std::vector<std::string> LaunchedTest::Finetune(const std::string& out,
                                                const std::vector<std::string>& more) const {
  std::vector<std::string> args = TrainingArgs(out, {"--disable_tqdm"});
  args.insert(args.begin(), "apps/finetune/finetune");
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

RunResult LaunchedTest::Launch(int num_processes, const std::vector<std::string>& program,
                               const RunOptions& options,
                               const std::vector<std::string>& launch_options) const {
  std::vector<std::string> args = {"launch", "--cpu", "--num_processes",
                                   std::to_string(num_processes)};
  args.insert(args.end(), launch_options.begin(), launch_options.end());
  args.insert(args.end(), program.begin(), program.end());
  return RunProgram("lathe", args, options);
}

void ExpectError(const RunResult& result, const std::string& part, int exit_code) {
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  EXPECT_TRUE(result.err.starts_with("error: ")) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  const auto lines = std::count(result.err.begin(), result.err.end(), '\n');
  EXPECT_TRUE(lines == 1 || (lines == 2 && result.err.find("\nhint: ") != std::string::npos))
      << result.err;
}

}  // namespace lathe
