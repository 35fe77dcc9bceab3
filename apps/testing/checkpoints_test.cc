// Tests that nothing is lost by trainings that are killed, interrupted or cut off.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kTimeout[] = "/usr/bin/timeout";

// Returns how many kills a test makes: $LATHE_KILLS, or 15.
int Kills() {
  const char* kills = std::getenv("LATHE_KILLS");
  return kills == nullptr ? 15 : std::atoi(kills);
}

class CheckpointsTest : public LaunchedTest {
 protected:
  std::vector<std::string> Options(const std::string& out,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args =
        TrainingArgs(out, {"--num_threads", "1", "--disable_tqdm", "--save_strategy", "steps",
                           "--save_steps", "3", "--max_steps", "96"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // Returns the log without what depends on the clock.
  nlohmann::json LogOf(const std::string& out) const {
    nlohmann::json log = ReadJson(out + "/trainer_state.json").at("log_history");
    log.erase(log.size() - 1);
    return log;
  }
  // Returns the command line of the program, of which the rank ends by itself once the checkpoint
  // of step 100 is there. It doesn't after a restart.
  std::vector<std::string> LosesARank(int rank, const std::vector<std::string>& program) const {
    Write("lost.sh",
          "#!/bin/bash\n"
          "if [ \"$RANK\" = " +
              std::to_string(rank) +
              " ] && [ -z \"${TORCHELASTIC_RESTART_COUNT:-}\" ]; then\n"
              "  me=$$\n"
              "  (until [ -d " +
              Path("out") +
              "/checkpoint-100 ]; do sleep 0.01; done; kill -9 $me) &\n"
              "fi\n"
              "exec \"$@\"\n");
    std::vector<std::string> command = {"/bin/bash", Path("lost.sh")};
    command.insert(command.end(), program.begin(), program.end());
    return command;
  }
  void ExpectSameEnd(const std::string& a, const std::string& b) const {
    EXPECT_EQ(Read(a + "/model.safetensors"), Read(b + "/model.safetensors"));
    EXPECT_EQ(Read(a + "/checkpoint-96/optimizer.h5"), Read(b + "/checkpoint-96/optimizer.h5"));
    EXPECT_EQ(LogOf(a), LogOf(b));
  }
};

TEST_F(CheckpointsTest, NothingIsLostToKills) {
  ASSERT_GT(Kills(), 0) << "LATHE_KILLS must be a number above 0";
  ASSERT_EQ(RunProgram("finetune", Options("whole")).exit_code, 0);
  const TestClock::time_point start = TestClock::now();
  ASSERT_EQ(RunProgram("finetune", Options("timed")).exit_code, 0);
  const double whole_time = SecondsSince(start);
  std::mt19937 random(42);
  int kills = 0, ends = 0;
  for (int run = 0; kills < Kills(); ++run) {
    const bool resumes = FindNewestCheckpoint(Path("out")).newest.has_value();
    std::vector<std::string> args = {
        "-s", "KILL",
        std::to_string(std::uniform_real_distribution<double>(0.05, whole_time)(random)),
        "apps/finetune/finetune"};
    const std::vector<std::string> options =
        Options("out", {resumes ? "--resume_from_checkpoint" : "--overwrite_output_dir", "true"});
    args.insert(args.end(), options.begin(), options.end());
    const RunResult result = RunProgram(kTimeout, args);
    for (const std::string& path : Acknowledged(result.out))
      EXPECT_NO_THROW(OpenCheckpoint(path)) << path << " of run " << run;
    if (result.exit_code == 0) {
      ExpectSameEnd("whole", "out");
      fs::remove_all(Path("out"));
      ++ends;
      continue;
    }
    ASSERT_EQ(result.exit_code, 137) << result.out << result.err;
    ++kills;
  }
  ASSERT_EQ(RunProgram("finetune", Options("out", {"--overwrite_output_dir"})).exit_code, 0);
  ExpectSameEnd("whole", "out");
  std::cout << kills << " kills, " << ends << " trainings came to their end" << std::endl;
}

// So many steps that a signal comes before the last one.
const std::vector<std::string> kLong = {"--save_strategy", "no", "--do_eval", "--max_steps", "400"};

TEST_F(CheckpointsTest, ASignalSavesAndThePrintedCommandGoesOn) {
  ASSERT_EQ(RunProgram("finetune", Options("whole", kLong)).exit_code, 0);
  for (const int signal_number : {SIGINT, SIGTERM, SIGUSR1}) {
    fs::remove_all(Path("out"));
    const RunResult stopped =
        RunProgram("finetune", Options("out", kLong),
                   {.interrupt_after = "step 5/", .interrupt_signal = signal_number});
    ASSERT_EQ(stopped.exit_code, 128 + signal_number) << stopped.out << stopped.err;
    EXPECT_EQ(stopped.err, "");
    constexpr char kSays[] = "\nto go on, run: ";
    const size_t at = stopped.out.find(kSays);
    ASSERT_NE(at, std::string::npos) << stopped.out;
    std::string command = stopped.out.substr(at + sizeof kSays - 1);
    command.resize(command.find('\n'));
    EXPECT_NE(command.find(" --resume_from_checkpoint " + Path("out") + "/checkpoint-"),
              std::string::npos)
        << command;
    const RunResult resumed = RunProgram("/bin/sh", {"-c", command});
    ASSERT_EQ(resumed.exit_code, 0) << command << resumed.out << resumed.err;
    EXPECT_NE(resumed.out.find("goes on"), std::string::npos) << resumed.out;
    // All weights are those of the checkpoint.
    EXPECT_NE(stopped.out.find("fresh weights"), std::string::npos) << stopped.out;
    EXPECT_EQ(resumed.out.find("fresh weights"), std::string::npos) << resumed.out;
    EXPECT_EQ(Read("whole/model.safetensors"), Read("out/model.safetensors"));
    EXPECT_EQ(LogOf("whole"), LogOf("out"));
  }
}

// A file that is cut off anywhere gets one line, and the checkpoint before is taken.
TEST_F(CheckpointsTest, EveryPrefixOfEachSmallFileIsFound) {
  const std::vector<std::string> options = Options("out", {"--max_steps", "6"});
  ASSERT_EQ(RunProgram("finetune", options).exit_code, 0);
  std::vector<std::string> resumed = options, by_name = options;
  resumed.insert(resumed.end(), {"--resume_from_checkpoint", "true"});
  by_name.insert(by_name.end(), {"--resume_from_checkpoint", Path("out/checkpoint-6")});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Path("out/checkpoint-6")))
    names.push_back(entry.path().filename());
  for (const char* name :
       {"config.json", "data_columns.json", "manifest.json", "model.safetensors", "optimizer.h5",
        "tokenizer_config.json", "trainer_state.json", "vocab.txt"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  for (const std::string& name : names) {
    const std::string file = "out/checkpoint-6/" + name, whole = Read(file);
    // Each size of the small ones, and some of the others.
    const size_t stride = whole.size() <= 8192 ? 1 : whole.size() / 500;
    // The manifest without its last newline still is the manifest.
    const size_t end = whole.size() - (name == kManifestFile ? 1 : 0);
    std::vector<size_t> sizes;
    for (size_t size = 0; size < end; size += stride) sizes.push_back(size);
    for (size_t i = sizes.size(); i-- > 0;) {
      fs::resize_file(Path(file), sizes[i]);
      const CheckpointSearch search = FindNewestCheckpoint(Path("out"));
      ASSERT_TRUE(search.newest) << name << " cut to " << sizes[i];
      ASSERT_EQ(search.newest->path, Path("out/checkpoint-3")) << name << " cut to " << sizes[i];
      ASSERT_EQ(search.left_out.size(), 1u) << name << " cut to " << sizes[i];
      ASSERT_TRUE(search.left_out[0].starts_with("checkpoint-6: " + name + ": "))
          << search.left_out[0];
    }
    Write(file, whole.substr(0, sizes[sizes.size() / 2]));
    ExpectError(RunProgram("finetune", by_name), Path(file) + ": ", 2);
    const RunResult run = RunProgram("finetune", resumed);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(run.out.find("left out checkpoint-6: " + name + ": "), std::string::npos) << run.out;
    EXPECT_NE(run.out.find("after step 3, from " + Path("out") + "/checkpoint-3"),
              std::string::npos)
        << run.out;
    EXPECT_EQ(Read(file), whole);
  }
}

TEST_F(CheckpointsTest, TheLauncherStartsALostJobAgain) {
  ASSERT_EQ(Launch(2, Finetune("whole", {"--save_strategy", "steps", "--save_steps", "100",
                                         "--max_steps", "400"}))
                .exit_code,
            0);
  const std::vector<std::string> command = LosesARank(
      1,
      Finetune("out", {"--save_strategy", "steps", "--save_steps", "100", "--max_steps", "400"}));
  const RunResult restarted = Launch(2, command, {}, {"--max_restarts", "3"});
  ASSERT_EQ(restarted.exit_code, 0) << restarted.out << restarted.err;
  EXPECT_NE(restarted.err.find("starting the job again with 2 processes, restart 1 of 3"),
            std::string::npos)
      << restarted.err;
  EXPECT_EQ(Read("whole/model.safetensors"), Read("out/model.safetensors"));
  fs::remove_all(Path("out"));
  const RunResult fewer =
      Launch(2, command, {}, {"--max_restarts", "3", "--restart_processes", "any"});
  ASSERT_EQ(fewer.exit_code, 0) << fewer.out << fewer.err;
  EXPECT_NE(fewer.err.find("starting the job again with 1 process, restart 1 of 3"),
            std::string::npos)
      << fewer.err;
  const std::vector<double> losses = Losses("whole"), after = Losses("out");
  ASSERT_EQ(losses.size(), after.size());
  for (size_t i = 0; i < 110; ++i) EXPECT_NEAR(losses[i], after[i], 2e-6) << i;
  fs::remove_all(Path("out"));
  EXPECT_NE(Launch(2, command).exit_code, 0);
}

// With all moments, whichever rank is left saves a checkpoint.
TEST_F(CheckpointsTest, ALostRankCostsNoStep) {
  const std::vector<std::string> options = {
      "--save_strategy",      "steps",       "--save_steps", "100",
      "--no_shard_optimizer", "--max_steps", "400"};
  ASSERT_EQ(Launch(2, Finetune("whole", options)).exit_code, 0);
  for (const int rank : {0, 1}) {
    fs::remove_all(Path("out"));
    const RunResult lost = Launch(2, LosesARank(rank, Finetune("out", options)));
    ASSERT_NE(lost.exit_code, 0);
    constexpr char kSays[] = "; training can go on from ";
    const size_t at = lost.err.find(kSays);
    ASSERT_NE(at, std::string::npos) << lost.err;
    std::string checkpoint = lost.err.substr(at + sizeof kSays - 1);
    checkpoint.resize(checkpoint.find('\n'));
    EXPECT_NO_THROW(OpenCheckpoint(checkpoint));
    EXPECT_NE(checkpoint, Path("out/checkpoint-100"));
    std::vector<std::string> resumed = options;
    resumed.insert(resumed.end(), {"--resume_from_checkpoint", checkpoint});
    const RunResult end = Launch(2, Finetune("out", resumed));
    ASSERT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(Read("whole/model.safetensors"), Read("out/model.safetensors")) << rank;
    EXPECT_EQ(LogOf("whole"), LogOf("out")) << rank;
  }
}

// The main process is lost twice. The other one saves as the same training, so that the limit
// counts its checkpoints, too.
TEST_F(CheckpointsTest, RestartsLeaveNoMoreCheckpointsThanTheLimit) {
  Write("lost.sh",
        "#!/bin/bash\n"
        "at=$((100 + 100 * ${TORCHELASTIC_RESTART_COUNT:-0}))\n"
        "if [ \"$RANK\" = 0 ] && [ $at -le 200 ]; then\n"
        "  me=$$\n"
        "  (until [ -d " +
            Path("out") +
            "/checkpoint-$at ] || ! kill -0 $me; do sleep 0.01; done; kill -9 $me) &\n"
            "fi\n"
            "exec \"$@\"\n");
  std::vector<std::string> command = {"/bin/bash", Path("lost.sh")};
  const std::vector<std::string> program =
      Finetune("out", {"--save_steps", "100", "--save_total_limit", "1", "--no_shard_optimizer",
                       "--max_steps", "400"});
  command.insert(command.end(), program.begin(), program.end());
  const RunResult run = Launch(2, command, {}, {"--max_restarts", "9"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_NE(run.err.find("restart 2 of 9"), std::string::npos) << run.err;
  std::vector<int64_t> steps;
  for (const NumberedFolder& folder : ListNumberedFolders(Path("out"), "checkpoint-"))
    steps.push_back(folder.number);
  EXPECT_EQ(steps, std::vector<int64_t>{400});
  EXPECT_EQ(ReadManifest(Path("out/checkpoint-400")).run, 1);
}

TEST_F(CheckpointsTest, MistakesGetOneLine) {
  ExpectError(RunProgram("finetune", Options("out", {"--save_strategy", "sometimes"})),
              "--save_strategy must be one of no, steps, epoch, best but is \"sometimes\"", 2);
  ExpectError(RunProgram("finetune", Options("out", {"--save_steps", "2.5"})),
              "save_steps must be a whole number or below 1", 2);
  ExpectError(RunProgram("finetune", Options("out", {"--save_strategy", "best"})),
              "save_strategy best needs evaluations while training", 2);
  ExpectError(RunProgram("finetune", Options("out", {"--resume_from_checkpoint"})),
              Path("out") + ": has no checkpoint to go on from", 2);
  ExpectError(RunProgram("finetune", Options("out", {"--resume_from_checkpoint", "nowhere"})),
              "nowhere: there is no such checkpoint", 2);
}

// The first difference of what decides on the results is named, and the flag that takes it.
TEST_F(CheckpointsTest, ChangesThatMatterAreRefused) {
  ASSERT_EQ(RunProgram("finetune", Options("out", {"--max_steps", "6"})).exit_code, 0);
  const auto expect_refused = [&](const std::string& difference,
                                  const std::vector<std::string>& more = {},
                                  const std::string& mixed_precision = "no") {
    std::vector<std::string> options = {"--max_steps", "6", "--resume_from_checkpoint"};
    options.insert(options.end(), more.begin(), more.end());
    RunResult run = RunProgram("finetune", Options("out", options));
    const std::string notes = ExpectedNotes(mixed_precision);
    EXPECT_TRUE(run.err.starts_with(notes)) << run.err;
    run.err.erase(0, notes.size());
    ExpectError(run, Path("out") + "/checkpoint-6: " + difference, 2);
    EXPECT_NE(run.err.find("\nhint: go on with the data and options of the checkpoint, or set "
                           "--resume_anyway\n"),
              std::string::npos)
        << run.err;
  };
  expect_refused("the model's seed was 42 and is 7", {"--seed", "7"});
  expect_refused("mixed_precision was no and is bf16", {"--bf16"}, "bf16");
  expect_refused("the model's config hidden_dropout_prob was ",
                 {"--config_overrides", "hidden_dropout_prob=0.25"});
  const std::string vocabulary = Read("model/vocab.txt"), data = Read("train.csv");
  const size_t word = vocabulary.rfind('\n', vocabulary.size() - 2) + 1;
  std::string changed = vocabulary;
  changed[word] = changed[word] == 'x' ? 'y' : 'x';
  Write("model/vocab.txt", changed);
  expect_refused("the ");
  Write("model/vocab.txt", vocabulary);
  Write("train.csv", data.substr(0, data.rfind('\n', data.size() - 2) + 1));
  expect_refused("the ");
  const RunResult anyway = RunProgram(
      "finetune",
      Options("out", {"--max_steps", "9", "--resume_from_checkpoint", "true", "--resume_anyway"}));
  EXPECT_EQ(anyway.exit_code, 0) << anyway.err;
  EXPECT_NE(anyway.out.find("resumed anyway: the "), std::string::npos) << anyway.out;
}

}  // namespace
}  // namespace lathe
