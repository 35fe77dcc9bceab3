// Tests finetune's options for data out of balance: weights of classes and rows, label smoothing
// and the focal loss.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

class LossOptionsCliTest : public LaunchedTest {
 protected:
  void SetUp() override {
    LaunchedTest::SetUp();
    SetConfig({{"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0}});
    // The column of weights comes first, so it must not be taken for a text.
    std::istringstream rows(Read("train.csv"));
    std::string row, weighted = "weight,sentence,label\n";
    std::getline(rows, row);
    for (int i = 0; std::getline(rows, row); ++i)
      weighted += std::to_string(i % 5) + ".5," + row + "\n";
    Write("weighted.csv", weighted);
  }

  std::vector<double> LossesWith(const std::string& out, const Args& more) const {
    Args args = {"--output_dir", Path(out), "--max_steps", "6"};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult run = Train(args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return Losses(out);
  }
};

TEST_F(LossOptionsCliTest, WeightsOfOneChangeHardlyAnything) {
  const auto plain = LossesWith("plain", {});
  const auto ones = LossesWith("ones", {"--class_weights", "negative=1,positive=1"});
  const auto uneven = LossesWith("uneven", {"--class_weights", "negative=3,positive=1"});
  ASSERT_EQ(ones.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(ones[i], plain[i], 1e-6);
  EXPECT_NE(uneven, plain);
}

TEST_F(LossOptionsCliTest, AFileOfWeightsIsTheSameAsTheirText) {
  Write("weights.json", R"({"positive": 3, "negative": 0.5})");
  EXPECT_EQ(LossesWith("file", {"--class_weights", Path("weights.json")}),
            LossesWith("text", {"--class_weights", "negative=0.5,positive=3"}));
  Write("arguments.json", R"({"class_weights": {"positive": 3, "negative": 0.5}})");
  EXPECT_EQ(LossesWith("object", {"--json_config", Path("arguments.json")}), Losses("text"));
}

TEST_F(LossOptionsCliTest, ProcessesAndAccumulationGiveTheLossesOfOne) {
  std::vector<double> one;
  for (const int n : {1, 2, 3}) {
    const std::string out = "out" + std::to_string(n), size = std::to_string(12 / n);
    const RunResult run =
        Launch(n, Finetune(out, {"--do_eval", "--train_file", Path("weighted.csv"),
                                 "--sample_weight_column", "weight", "--class_weights", "balanced",
                                 "--focal_gamma", "1.5", "--per_device_train_batch_size", size,
                                 "--gradient_accumulation_steps", "3", "--num_train_epochs", "2"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::vector<double> losses = Losses(out);
    ASSERT_EQ(losses.size(), 6u);
    if (n == 1) one = losses;
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(losses[i], one[i], 1e-6 * one[i]) << n << " processes, step " << i + 1;
    EXPECT_NEAR(ReadJson(out + "/all_results.json")["eval_loss"].get<double>(),
                ReadJson("out1/all_results.json")["eval_loss"].get<double>(), 1e-5);
  }
}

// Trainer smooths the labels in its eval_loss, too. With logits of 0 for two classes both losses
// are log 2. A sure model has a higher loss than without smoothing.
TEST_F(LossOptionsCliTest, TheEvaluationsLossIsSmoothed) {
  ASSERT_EQ(Train({"--do_eval", "--num_train_epochs", "6"}).exit_code, 0);
  const double plain = ReadJson("out/eval_results.json")["eval_loss"];
  std::vector<double> losses;
  for (const char* factor : {"0", "0.5"}) {
    const RunResult run =
        RunProgram("finetune", {"--model_name_or_path", Path("out"), "--validation_file",
                                Path("dev.csv"), "--do_eval", "--output_dir", Path("again"),
                                "--label_smoothing_factor", factor});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    losses.push_back(ReadJson("again/eval_results.json")["eval_loss"]);
  }
  EXPECT_NEAR(losses[0], plain, 1e-6);
  EXPECT_GT(losses[1], losses[0] + 0.05);
}

TEST_F(LossOptionsCliTest, TheCacheKnowsTheWeights) {
  const Args weighted = {"--train_file", Path("weighted.csv"), "--sample_weight_column", "weight"};
  const auto with_cache = [&](const std::string& out, Args args) {
    args.insert(args.end(), {"--dataset_cache", Path("cache")});
    return LossesWith(out, args);
  };
  const auto memory = LossesWith("memory", weighted);
  EXPECT_EQ(with_cache("first", weighted), memory);
  EXPECT_EQ(with_cache("second", weighted), memory);
  const auto without =
      LossesWith("without", {"--train_file", Path("weighted.csv"), "--text_columns", "sentence"});
  EXPECT_EQ(
      with_cache("third", {"--train_file", Path("weighted.csv"), "--text_columns", "sentence"}),
      without);
  EXPECT_NE(without, memory);
}

TEST_F(LossOptionsCliTest, TheColumnOfWeightsMayBeGivenByNumber) {
  const auto with = [&](const std::string& out, const std::string& column,
                        const std::string& cache) {
    return LossesWith(out, {"--train_file", Path("weighted.csv"), "--sample_weight_column", column,
                            "--dataset_cache", cache});
  };
  const auto named = with("named", "weight", "none");
  EXPECT_EQ(with("numbered", "1", "none"), named);
  EXPECT_EQ(with("cached", "1", Path("cache")), named);
  EXPECT_EQ(with("again", "1", Path("cache")), named);
  ExpectError(Train({"--train_file", Path("weighted.csv"), "--sample_weight_column", "4"}),
              "weighted.csv: there is no column 4; it has 3");
}

TEST_F(LossOptionsCliTest, SeveralLabelsHavePositiveWeights) {
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    rows += i % 3 == 0 ? "{\"text\": \"good film\", \"label\": [\"fine\"]}\n"
                       : "{\"text\": \"a dull plot\", \"label\": [\"poor\"]}\n";
  }
  Write("several.jsonl", rows);
  const Args several = {"--train_file", Path("several.jsonl")};
  const auto with = [&](const std::string& out, Args more) {
    more.insert(more.end(), several.begin(), several.end());
    return LossesWith(out, more);
  };
  const auto balanced = with("balanced", {"--class_weights", "balanced"});
  const auto named = with("named", {"--class_weights", "poor=0.5,fine=2"});
  EXPECT_EQ(balanced, named);
  EXPECT_NE(balanced, with("plain", {}));
}

TEST_F(LossOptionsCliTest, ResumeRefusesOtherOptions) {
  const Args saving = {"--save_strategy",
                       "steps",
                       "--save_steps",
                       "3",
                       "--max_steps",
                       "3",
                       "--lr_scheduler_type",
                       "constant",
                       "--train_file",
                       Path("weighted.csv"),
                       "--sample_weight_column",
                       "weight",
                       "--class_weights",
                       "balanced"};
  ASSERT_EQ(Train(saving).exit_code, 0);
  const auto resume = [&](const Args& changes) {
    Args args = saving;
    args.insert(args.end(), {"--resume_from_checkpoint", "--max_steps", "5"});
    args.insert(args.end(), changes.begin(), changes.end());
    return Train(args);
  };
  ExpectError(resume({"--class_weights", "none"}), "class_weights was [", 2);
  ExpectError(resume({"--label_smoothing_factor", "0.1"}), "label_smoothing_factor was not set", 2);
  ExpectError(resume({"--focal_gamma", "2"}), "focal_gamma was not set and is 2.0", 2);
  Write("heavier.csv",
        Read("weighted.csv").replace(Read("weighted.csv").find("\n0.5,"), 5, "\n9.5,"));
  ExpectError(resume({"--train_file", Path("heavier.csv")}), "sample weights was ", 2);
  const RunResult same = resume({});
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

TEST_F(LossOptionsCliTest, WrongOptions) {
  const auto expect = [&](const Args& args, const std::string& message, int exit_code = 2) {
    ExpectError(Train(args), message, exit_code);
  };
  expect({"--class_weights", R"({"positive": 2, "positive": 50, "negative": 1})"},
         "class_weights: \"positive\" appears twice");
  expect({"--class_weights", "positive=2"}, "there is no weight for label \"negative\"");
  expect({"--class_weights", "positive=2,negative=1,odd=1"},
         "\"odd\" is not one of the labels negative, positive");
  expect({"--class_weights", "positive=0,negative=1"},
         "the weight of label \"positive\" must be a positive number up to 1e+12 but is \"0\"");
  expect({"--class_weights", "balance"}, "\"balance\" is no LABEL=WEIGHT");
  expect({"--label_smoothing_factor", "0.1", "--focal_gamma", "2"},
         "label_smoothing_factor and focal_gamma exclude each other");
  expect({"--label_smoothing_factor", "1.5"}, "label_smoothing_factor");
  expect({"--sample_weight_column", "label"}, "name the same column");
  expect({"--sample_weight_column", "weigth"}, "no column \"weigth\"; it has: sentence, label", 1);
  expect({"--train_file", Path("weighted.csv"), "--sample_weight_column", "weight",
          "--text_columns", "weight"},
         "column \"weight\" is the sample weight and cannot be a text", 1);
  Write("bad.csv", "sentence,label,weight\ngood film,positive,1\ndull,negative,-2\n");
  expect({"--train_file", Path("bad.csv"), "--sample_weight_column", "weight"},
         "bad.csv:3: sample weight \"-2\" is not a number from 0 to 1e+12", 1);
  Write("none.csv", "sentence,label,weight\ngood film,positive,0\ndull,negative,0\n");
  expect({"--train_file", Path("none.csv"), "--sample_weight_column", "weight"},
         "all sample weights are 0", 1);
  ExpectError(RunProgram("finetune", {"--config_name", Path("model"), "--validation_file",
                                      Path("dev.csv"), "--do_eval", "--output_dir", Path("eval"),
                                      "--class_weights", "balanced"}),
              "--class_weights balanced needs --do_train", 2);
  Write("scores.csv", "sentence,label\ngood film,0.5\ndull,1.5\n");
  expect({"--train_file", Path("scores.csv"), "--validation_file", Path("scores.csv"),
          "--label_smoothing_factor", "0.1"},
         "label_smoothing_factor needs one class for each row, but the labels are scores");
}

TEST_F(LossOptionsCliTest, FrozenLayersStayAsTheyAre) {
  const Args frozen = {"--freeze_layers",      "1",    "--layerwise_lr_decay", "0.8",
                       "--head_learning_rate", "2e-2", "--weight_decay",       "0.1"};
  const auto with = [&](const std::string& out, Args more) {
    more.insert(more.end(), frozen.begin(), frozen.end());
    return LossesWith(out, more);
  };
  const auto one = with("one", {});
  EXPECT_NE(one, LossesWith("plain", {}));
  EXPECT_EQ(Logged("one", "learning_rate")[0], 1e-2);
  // A run that is cut and goes on gives the same losses.
  with("out", {"--max_steps", "3", "--save_strategy", "steps", "--save_steps", "3",
               "--lr_scheduler_type", "constant"});
  const Args going_on = {"--output_dir", Path("out"), "--resume_from_checkpoint",
                         "--lr_scheduler_type", "constant"};
  const auto resumed = with("out", going_on);
  const auto whole = with("whole", {"--lr_scheduler_type", "constant"});
  ASSERT_EQ(resumed.size(), 6u);
  EXPECT_EQ(resumed, whole);
}

// Dropout is off, so the encoder's outputs are kept for all epochs of 12 steps.
TEST_F(LossOptionsCliTest, AFrozenEncoderRunsOnce) {
  const Args frozen = {"--freeze_layers", "encoder", "--max_steps", "30"};
  const auto train = [&](int processes, const std::string& out, const Args& more) {
    Args args = frozen;
    args.insert(args.end(), more.begin(), more.end());
    return Launch(processes, Finetune(out, args));
  };
  const RunResult one = train(1, "one", {});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out.find("note: the frozen encoder"), std::string::npos) << one.out;
  const std::vector<double> losses = Losses("one");
  ASSERT_EQ(losses.size(), 30u);
  const RunResult two = train(2, "two", {"--per_device_train_batch_size", "4"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  const std::vector<double> of_two = Losses("two");
  ASSERT_EQ(of_two.size(), 30u);
  for (size_t i = 0; i < 30; ++i) EXPECT_NEAR(of_two[i], losses[i], 2e-6) << i;

  const RunResult random = train(1, "random", {"--config_overrides", "hidden_dropout_prob=0.1"});
  ASSERT_EQ(random.exit_code, 0) << random.err;
  EXPECT_NE(random.out.find("note: the frozen encoder runs in each epoch, because its dropout"),
            std::string::npos)
      << random.out;
}

// The encoder runs in the first of four evaluations only. Another process runs it anew.
TEST_F(LossOptionsCliTest, EvaluationsOfAFrozenEncoderKeepTheirBits) {
  for (const int processes : {1, 2}) {
    const std::string out = "out" + std::to_string(processes);
    const RunResult run = Launch(
        processes, Finetune(out, {"--freeze_layers", "encoder", "--do_eval", "--eval_strategy",
                                  "steps", "--eval_steps", "10", "--max_steps", "30",
                                  "--per_device_eval_batch_size", "7"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::vector<double> losses = Logged(out, "eval_loss");
    ASSERT_EQ(losses.size(), 3u);
    EXPECT_NE(losses[0], losses[2]);
    EXPECT_EQ(ReadJson(out + "/eval_results.json")["eval_loss"], losses[2]);
    const RunResult alone =
        Launch(processes, {"apps/finetune/finetune", "--model_name_or_path", Path(out), "--do_eval",
                           "--validation_file", Path("dev.csv"), "--per_device_eval_batch_size",
                           "7", "--output_dir", Path("alone" + std::to_string(processes))});
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    EXPECT_EQ(ReadJson("alone" + std::to_string(processes) + "/eval_results.json")["eval_loss"],
              losses[2]);
  }
}

TEST_F(LossOptionsCliTest, TellsWhatIsFrozenAndWhatHasNoEffect) {
  const RunResult run = Train({"--freeze_layers", "encoder", "--layerwise_lr_decay", "0.9",
                               "--eval_steps", "3", "--max_steps", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* line :
       {" parameters: the embeddings, layers 1 to 2, the rest below the head; ",
        "\n  note        --eval_steps has no effect without --eval_strategy steps\n",
        "\n  note        --layerwise_lr_decay has no effect, since --freeze_layers leaves no layer "
        "to train\n"}) {
    EXPECT_NE(run.out.find(line), std::string::npos) << line << " in " << run.out;
  }
  const RunResult plain = Train({"--overwrite_output_dir", "--max_steps", "2"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  for (const char* part : {"  frozen  ", "has no effect"})
    EXPECT_EQ(plain.out.find(part), std::string::npos) << plain.out;
}

TEST_F(LossOptionsCliTest, WrongPartsOfTheModel) {
  ExpectError(Train({"--freeze_layers", "3"}), "freeze_layers is 3 but the model has 2 layers", 2);
  ExpectError(Train({"--freeze_layers", "nothing"}), "freezes no parameter", 2);
  for (const std::string number : {"-1", "1.5", "+1", "1e0"}) {
    ExpectError(Train({"--freeze_layers", number}),
                "freeze_layers must be a whole number of layers from 0 but is " + number, 2);
  }
  ExpectError(Train({"--freeze_layers", "["}), "is no regular expression", 2);
  ExpectError(Train({"--layerwise_lr_decay", "0"}), "layerwise_lr_decay must be above 0", 2);
}

}  // namespace
}  // namespace lathe
