// Runs the program in trainer.cc.
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using TrainerExample = LaunchedTest;

TEST_F(TrainerExample, StopsWhenTheModelIsGood) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);  // makes a model to start from
  const RunResult run = RunProgram("examples/trainer",
                                   {Path("out"), Path("train.csv"), Path("dev.csv"), Path("good")});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("\nstopped after step "), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("\nstopped after step 240\n"), std::string::npos) << run.out;
  const RunResult eval =
      RunProgram("finetune", {"--model_name_or_path", Path("good"), "--validation_file",
                              Path("dev.csv"), "--do_eval", "--output_dir", Path("eval")});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_GE(ReadJson("eval/eval_results.json").at("eval_accuracy"), 0.9);

  const RunResult ranks = Launch(
      2, {"examples/trainer", Path("out"), Path("train.csv"), Path("dev.csv"), Path("ranks")});
  ASSERT_EQ(ranks.exit_code, 0) << ranks.out << ranks.err;
  EXPECT_NE(ranks.out.find("\nstopped after step "), std::string::npos) << ranks.out;
}

}  // namespace
}  // namespace lathe
