// What `finetune` shows on a terminal and elsewhere: the curve of losses below the progress bar,
// and long lines.
#include <filesystem>
#include <regex>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

// Debian's program that runs a command on a terminal of its own, and writes down what comes.
constexpr char kScript[] = "/usr/bin/script";

class CliLossCurveTest : public CliTest {};

TEST_F(CliLossCurveTest, IsDrawnOnATerminalAndGoesAtTheEnd) {
  if (!std::filesystem::exists(kScript)) GTEST_SKIP() << "there is no " << kScript;
  std::string command = "LC_ALL=C.UTF-8 apps/finetune/finetune";
  for (const std::string& arg :
       TrainingArgs("out", {"--num_threads", "1", "--max_steps", "3000", "--logging_steps", "1500",
                            "--learning_rate", "1e-4", "--loss_curve"}))
    command += " '" + arg + "'";
  const RunResult run = RunProgram(kScript, {"-qefc", command, "/dev/null"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  // Eight lines, and the cursor goes back up to the bar.
  EXPECT_NE(run.out.find("\x1b[8A\rtrain "), std::string::npos) << run.out;
  const size_t last = run.out.rfind("│");
  ASSERT_NE(last, std::string::npos) << run.out;
  EXPECT_NE(run.out.find("\r\x1b[J", last), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find('\x1b', run.out.rfind("\r\x1b[J") + 2), std::string::npos) << run.out;
}

TEST_F(CliLossCurveTest, ChangesNothingElsewhere) {
  ASSERT_EQ(Train({"--max_steps", "40"}).exit_code, 0);
  const std::string model = Read("out/model.safetensors");
  const RunResult run = Train({"--max_steps", "40", "--loss_curve", "--overwrite_output_dir"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, ExpectedNotes("no"));
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("│"), std::string::npos) << run.out;
  EXPECT_EQ(Read("out/model.safetensors"), model);
}

TEST_F(CliLossCurveTest, LongLinesAreFoldedOnATerminalAlone) {
  if (!std::filesystem::exists(kScript)) GTEST_SKIP() << "there is no " << kScript;
  const std::vector<std::string> options = {"--num_threads",   "1",     "--max_steps",  "2",
                                            "--eval_strategy", "steps", "--eval_steps", "2"};
  std::string command = "stty cols 60; apps/finetune/finetune";
  for (const std::string& arg : TrainingArgs("out", options)) command += " '" + arg + "'";
  const RunResult run = RunProgram(kScript, {"-qefc", command, "/dev/null"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  const std::string metric = "  eval_[a-z_0-9]+ -?[0-9.]+";
  EXPECT_TRUE(std::regex_search(
      run.out, std::regex("eval at step 2(" + metric + ")+\r\n  (" + metric + ")+\r\n")))
      << run.out;
  EXPECT_TRUE(std::regex_search(
      run.out, std::regex("  labels      single_label_classification, 2: negative\r\n"
                          " {14}positive\r\n")))
      << run.out;
  const RunResult piped = RunProgram("finetune", TrainingArgs("piped", options));
  ASSERT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_TRUE(std::regex_search(piped.out, std::regex("\neval at step 2(" + metric + "){4}\n")))
      << piped.out;
  EXPECT_NE(piped.out.find("2: negative positive\n"), std::string::npos) << piped.out;
}

TEST_F(CliLossCurveTest, NeedsTheBar) {
  ExpectError(Train({"--loss_curve", "--disable_tqdm"}),
              "--loss_curve and --disable_tqdm exclude each other", 2);
}

}  // namespace
}  // namespace lathe
