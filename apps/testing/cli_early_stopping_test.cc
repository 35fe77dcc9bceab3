// Tests early stopping as users see it. train/ tests its rules.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

class CliEarlyStoppingTest : public LaunchedTest {
 protected:
  // No evaluation but the first is an improvement by so much, so the fourth one ends the training.
  const Args options_ = {"--eval_strategy",
                         "steps",
                         "--eval_steps",
                         "2",
                         "--max_steps",
                         "20",
                         "--early_stopping_patience",
                         "3",
                         "--early_stopping_threshold",
                         "1000"};

  Args With(const Args& more) const {
    Args args = options_;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_F(CliEarlyStoppingTest, StopsAndSaysWhy) {
  const RunResult run = Train(options_);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ReadJson("out/trainer_state.json").at("global_step"), 8);
  for (const char* part :
       {"  stops early after 3 evaluations in a row without a better eval_loss\n",
        "  note        the last model is saved, not the best one; ",
        "\nstopped early after step 8: eval_loss has not improved by more than 1000 for 3 "
        "evaluations; its best value, "}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << run.out;
  }
  const RunResult best = Train(With({"--overwrite_output_dir", "--load_best_model_at_end"}));
  ASSERT_EQ(best.exit_code, 0) << best.err;
  EXPECT_EQ(best.out.find("the last model is saved"), std::string::npos) << best.out;
}

// The training has the same bits as one that ends after the same step anyway.
TEST_F(CliEarlyStoppingTest, ChangesNoBit) {
  const Args constant = {"--lr_scheduler_type", "constant"};
  ASSERT_EQ(Train(With(constant)).exit_code, 0);
  ASSERT_EQ(
      Train({"--output_dir", Path("plain"), "--max_steps", "8", "--lr_scheduler_type", "constant"})
          .exit_code,
      0);
  EXPECT_EQ(Read("out/model.safetensors"), Read("plain/model.safetensors"));
}

TEST_F(CliEarlyStoppingTest, ProcessesStopTogetherAndGoOnCounting) {
  const Args saves = With({"--save_strategy", "steps", "--save_steps", "5"});
  const RunResult run = Launch(2, Finetune("out", saves));
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(ReadJson("out/trainer_state.json").at("global_step"), 8);
  EXPECT_EQ(ReadJson("out/checkpoint-5/trainer_state.json")
                .at("stateful_callbacks")
                .at("EarlyStoppingCallback")
                .at("attributes")
                .at("early_stopping_patience_counter"),
            1);
  const std::string model = Read("out/model.safetensors");
  Args resumed = saves;
  resumed.push_back("--resume_from_checkpoint");
  const RunResult again = Launch(2, Finetune("out", resumed));
  ASSERT_EQ(again.exit_code, 0) << again.out << again.err;
  EXPECT_NE(again.out.find("stopped early after step 8: "), std::string::npos) << again.out;
  EXPECT_EQ(Read("out/model.safetensors"), model);
}

TEST_F(CliEarlyStoppingTest, NeedsEvaluations) {
  const RunResult run = Train({"--early_stopping_patience", "3"});
  ExpectError(run, "early_stopping_patience needs evaluations while training", 2);
  EXPECT_FALSE(Exists("out"));
}

}  // namespace
}  // namespace lathe
