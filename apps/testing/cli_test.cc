// Runs the programs as a user does.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void ExpectKeys(const Json& json, const std::vector<std::string>& keys) {
  for (const auto& key : keys) EXPECT_TRUE(json.contains(key)) << key << " is missing in " << json;
}

TEST_F(CliTest, TrainsEvaluatesAndPredicts) {
  const RunResult run = Train({"--do_eval", "--do_predict", "--test_file", Path("test.csv"),
                               "--eval_strategy", "epoch", "--num_train_epochs", "6"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");

  for (const char* name : {"config.json", "model.safetensors", "vocab.txt", "all_results.json"}) {
    EXPECT_TRUE(Exists("out/" + std::string(name))) << name;
  }
  EXPECT_EQ(ReadJson("out/data_columns.json"),
            Json({{"text_columns", {"sentence"}}, {"label_column", "label"}}));
  const Json train = ReadJson("out/train_results.json");
  ExpectKeys(train,
             {"train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second",
              "train_tokens_per_second", "time_to_first_step", "peak_rss_bytes", "epoch"});
  EXPECT_EQ(train["epoch"], 6.0);
  EXPECT_GT(train["peak_rss_bytes"], 1e6);

  const Json eval = ReadJson("out/eval_results.json");
  ExpectKeys(eval, {"eval_loss", "eval_accuracy", "eval_f1", "eval_matthews_correlation",
                    "eval_runtime", "eval_samples_per_second", "epoch"});
  EXPECT_GT(eval["eval_accuracy"], 0.8);

  const Json state = ReadJson("out/trainer_state.json");
  EXPECT_EQ(state["global_step"], 72);
  EXPECT_EQ(state["max_steps"], 72);
  const Json& first = state["log_history"][0];
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["learning_rate"], 1e-2);
  EXPECT_NEAR(first["loss"], std::log(2), 0.1);
  ExpectKeys(first, {"epoch", "grad_norm"});
  EXPECT_EQ(std::count_if(state["log_history"].begin(), state["log_history"].end(),
                          [](const Json& entry) { return entry.contains("eval_accuracy"); }),
            6);

  const auto predictions = Lines(Read("out/predict_results.tsv"));
  ASSERT_EQ(predictions.size(), 21u);
  EXPECT_EQ(predictions[0],
            "index\tprediction\tlogit_negative\tlogit_positive\t"
            "probability_negative\tprobability_positive");
  for (size_t i = 1; i < predictions.size(); ++i) {
    std::istringstream cells(predictions[i]);
    std::string index, prediction;
    double negative = 0, positive = 0, of_negative = 0, of_positive = 0;
    cells >> index >> prediction >> negative >> positive >> of_negative >> of_positive;
    ASSERT_TRUE(cells) << predictions[i];
    EXPECT_NEAR(of_positive, 1 / (1 + std::exp(negative - positive)), 1e-6);
    EXPECT_NEAR(of_negative + of_positive, 1, 2e-6);
    EXPECT_EQ(prediction, of_positive > 0.5 ? "positive" : "negative");
  }

  const RunResult again =
      RunProgram("finetune", {"--model_name_or_path", Path("out"), "--validation_file",
                              Path("dev.csv"), "--do_eval", "--output_dir", Path("again")});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NEAR(ReadJson("again/eval_results.json")["eval_loss"], eval["eval_loss"], 1e-6);
  EXPECT_EQ(ReadJson("again/eval_results.json")["eval_accuracy"], eval["eval_accuracy"]);
}

TEST_F(CliTest, SeveralLabelsFromJsonLines) {
  std::string rows;
  for (int i = 0; i < 48; ++i) {
    rows += i % 3 == 0   ? "{\"text\": \"good film\", \"label\": [\"fine\"]}\n"
            : i % 3 == 1 ? "{\"text\": \"bad film\", \"label\": [\"poor\", \"long\"]}\n"
                         : "{\"text\": \"film\", \"label\": []}\n";
  }
  Write("train.jsonl", rows);
  const RunResult run = Train({"--train_file", Path("train.jsonl"), "--validation_file",
                               Path("train.jsonl"), "--test_file", Path("train.jsonl"), "--do_eval",
                               "--do_predict", "--num_train_epochs", "10"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ReadJson("out/config.json")["problem_type"], "multi_label_classification");
  ExpectKeys(ReadJson("out/eval_results.json"), {"eval_loss", "eval_f1", "eval_accuracy"});
  const auto predictions = Lines(Read("out/predict_results.tsv"));
  ASSERT_EQ(predictions.size(), 49u);
  EXPECT_EQ(predictions[0],
            "index\tprediction\tlogit_fine\tlogit_long\tlogit_poor\t"
            "probability_fine\tprobability_long\tprobability_poor");
  for (size_t i = 1; i < predictions.size(); ++i) {  // labels as arrays in JSON
    std::istringstream cells(predictions[i]);
    std::string index, labels;
    std::getline(std::getline(cells, index, '\t'), labels, '\t');
    Json expected = Json::array();
    double logits[3];
    for (double& logit : logits) cells >> logit;
    for (size_t c = 0; c < 3; ++c) {
      if (logits[c] > 0) expected.push_back(std::vector{"fine", "long", "poor"}[c]);
    }
    EXPECT_EQ(labels, DumpJson(expected)) << predictions[i];
  }
}

TEST_F(CliTest, OverridesKeysThatTheConfigLeavesToTheirDefaults) {
  Json config = ReadJson("model/config.json");
  config.erase("hidden_dropout_prob");
  Write("model/config.json", DumpJson(config));
  ASSERT_EQ(Train({"--config_overrides", "hidden_dropout_prob=0.25", "--max_steps", "1"}).exit_code,
            0);
  EXPECT_EQ(ReadJson("out/config.json")["hidden_dropout_prob"], 0.25);
}

TEST_F(CliTest, KeepsTheBestModel) {
  const RunResult run = Train({"--do_eval", "--eval_strategy", "steps", "--eval_steps", "4",
                               "--load_best_model_at_end", "--metric_for_best_model", "accuracy",
                               "--num_train_epochs", "3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json state = ReadJson("out/trainer_state.json");
  EXPECT_EQ(ReadJson("out/eval_results.json")["eval_accuracy"], state["best_metric"]);
  EXPECT_TRUE(state["best_global_step"].is_number());
}

TEST_F(CliTest, Regression) {
  Write(
      "train.csv",
      "sentence,label\na good film,4.5\na bad film,1.0\nthe plot is dull,1.5\nit was great,5.0\n");
  Write("dev.csv", "sentence,label\na fine story,4.0\na poor story,0.5\na film,2\n");
  const RunResult run = Train({"--do_eval", "--do_predict", "--test_file", Path("dev.csv")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ExpectKeys(ReadJson("out/eval_results.json"), {"eval_mse", "eval_pearson", "eval_spearmanr"});
  EXPECT_EQ(ReadJson("out/config.json")["problem_type"], "regression");
  EXPECT_EQ(Lines(Read("out/predict_results.tsv")).size(), 4u);
}

TEST_F(CliTest, ControlCSavesTheModel) {
  const RunResult run = Train({"--max_steps", "1000000"}, {.interrupt_after = "step 3/"});
  EXPECT_NE(run.out.find("  texts       sentence\n"), std::string::npos) << run.out;
  EXPECT_EQ(run.exit_code, 130) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("interrupted after step"), std::string::npos);
  EXPECT_GE(ReadJson("out/trainer_state.json")["global_step"], 3);
  const RunResult eval =
      RunProgram("finetune", {"--model_name_or_path", Path("out"), "--validation_file",
                              Path("dev.csv"), "--do_eval", "--output_dir", Path("eval")});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
}

// Ctrl-C goes to a whole pipeline, so the reader of the output may end first.
TEST_F(CliTest, ControlCWithAReaderThatIsGone) {
  const RunResult run =
      Train({"--max_steps", "1000000"}, {.interrupt_after = "step 3/", .close_output = true});
  EXPECT_EQ(run.exit_code, 130) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(RunProgram("lathe", {"predict", Path("out"), "the film"}).exit_code, 0);
}

TEST_F(CliTest, OtherSignalsSaveTheModelToo) {
  for (const int signal_number : {SIGTERM, SIGHUP}) {
    const std::string out = "out" + std::to_string(signal_number);
    const RunResult run = Train({"--max_steps", "1000000", "--output_dir", Path(out)},
                                {.interrupt_after = "step 3/", .interrupt_signal = signal_number});
    EXPECT_EQ(run.exit_code, 128 + signal_number) << run.err;
    EXPECT_EQ(RunProgram("lathe", {"predict", Path(out), "the film"}).exit_code, 0);
  }
}

// Weights are written in float32, and config.json must say so: Transformers loads them in the dtype
// that it names.
TEST_F(CliTest, ConfigSaysTheDTypeOfTheWeights) {
  SetConfig({{"dtype", "bfloat16"}, {"torch_dtype", "float16"}});
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  EXPECT_EQ(ReadJson("out/config.json")["dtype"], "float32");
  EXPECT_EQ(ReadJson("out/config.json")["torch_dtype"], "float32");
}

TEST_F(CliTest, ControlCSavesTheBestModelWhereThatIsWanted) {
  const RunResult run = Train({"--max_steps", "1000000", "--eval_strategy", "steps", "--eval_steps",
                               "2", "--load_best_model_at_end"},
                              {.interrupt_after = "eval at step 4", .interrupts = 3});
  EXPECT_EQ(run.exit_code, 130) << run.err;
  const Json state = ReadJson("out/trainer_state.json");
  const std::string best = "; the best model, of step " +
                           std::to_string(state["best_global_step"].get<int64_t>()) + ", is in ";
  EXPECT_NE(run.out.find(best), std::string::npos) << run.out;
  const RunResult eval =
      RunProgram("finetune", {"--model_name_or_path", Path("out"), "--validation_file",
                              Path("dev.csv"), "--do_eval", "--output_dir", Path("eval")});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_NEAR(ReadJson("eval/eval_results.json")["eval_loss"], state["best_metric"], 1e-6);
}

TEST_F(CliTest, LathePredict) {
  ASSERT_EQ(Train({"--num_train_epochs", "6"}).exit_code, 0);
  const RunResult words =
      RunProgram("lathe", {"predict", Path("out"), "the film is great", "a dull plot"});
  ASSERT_EQ(words.exit_code, 0) << words.err;
  const auto lines = Lines(words.out);
  ASSERT_EQ(lines.size(), 2u);
  const Json first = ParseJson(lines[0]);
  EXPECT_EQ(first["label"], "positive");
  EXPECT_GT(first["score"], 0.5);
  EXPECT_FALSE(first.contains("scores"));

  const RunResult input =
      RunProgram("lathe", {"predict", Path("out"), "--all_scores", "--batch_size", "2"},
                 {.input = "the film is great\na dull plot\n\n"});
  ASSERT_EQ(input.exit_code, 0) << input.err;
  ASSERT_EQ(Lines(input.out).size(), 3u);
  const Json all = ParseJson(Lines(input.out)[0]);
  EXPECT_NEAR(all["score"], first["score"], 2e-6);
  EXPECT_NEAR(all["scores"]["positive"].get<double>() + all["scores"]["negative"].get<double>(), 1,
              2e-6);

  ExpectError(RunProgram("lathe", {"predict", Path("out")}, {.input = "fine\nbad \xff byte\n"}),
              "standard input:2: not valid UTF-8");
  ExpectError(RunProgram("lathe", {"predict", Path("nowhere"), "x"}), "nowhere");
}

TEST_F(CliTest, TheExampleLoopTrains) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  const RunResult run = RunProgram("examples/training_loop",
                                   {Path("out"), Path("train.csv"), Path("dev.csv"), Path("loop")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("epoch 3: eval_loss 0."), std::string::npos) << run.out;
  const RunResult eval =
      RunProgram("finetune", {"--model_name_or_path", Path("loop"), "--validation_file",
                              Path("dev.csv"), "--do_eval", "--output_dir", Path("eval")});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
}

TEST_F(CliTest, LatheCommands) {
  EXPECT_EQ(RunProgram("lathe", {"--help"}).exit_code, 0);
  for (const char* command : {"predict", "evaluate", "launch", "config", "test", "env",
                              "estimate-memory", "tokenize", "download", "cache"}) {
    const RunResult help = RunProgram("lathe", {command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << command;
    for (const std::string& line : Lines(help.out)) {
      if (line.find(Path("hf")) != std::string::npos) continue;  // a path may be longer
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
  EXPECT_EQ(RunProgram("finetune", {"--help"}).exit_code, 0);
  const RunResult typo = RunProgram("lathe", {"perdict"});
  ExpectError(typo, "unknown command \"perdict\"", 2);
  EXPECT_NE(typo.err.find("did you mean predict?"), std::string::npos);
  ExpectError(RunProgram("lathe", {"predict"}), "MODEL_DIR is missing", 2);
  ExpectError(RunProgram("lathe", {"predict", "m", "--all_score"}), "unknown option --all_score",
              2);
}

}  // namespace
}  // namespace lathe
