// --thresholds and --calibrate: what is fitted, kept in config.json and obeyed.
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(ParseJson(line));
  return lines;
}

class DecisionsTest : public LaunchedTest {
 protected:
  void WriteSeveralLabels() const {
    std::string rows;
    for (int i = 0; i < 48; ++i) {
      rows += i % 3 == 0   ? "{\"text\": \"good film\", \"label\": [\"fine\"]}\n"
              : i % 3 == 1 ? "{\"text\": \"bad film\", \"label\": [\"poor\", \"long\"]}\n"
                           : "{\"text\": \"film\", \"label\": []}\n";
    }
    Write("train.jsonl", rows);
  }
  std::vector<std::string> SeveralLabels(std::vector<std::string> more) const {
    const std::vector<std::string> files = {"--train_file", Path("train.jsonl"),
                                            "--validation_file", Path("train.jsonl"), "--do_eval"};
    more.insert(more.end(), files.begin(), files.end());
    return more;
  }
  std::vector<Json> Predict(const std::string& folder, std::vector<std::string> texts) const {
    texts.insert(texts.begin(), {"predict", Path(folder), "--all_scores"});
    const RunResult run = RunProgram("lathe", texts);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return JsonLines(run.out);
  }
};

TEST_F(DecisionsTest, TunedThresholdsAreKeptAndObeyed) {
  WriteSeveralLabels();
  // After so few steps no probability is above one half for the rare labels.
  const RunResult run = Train(SeveralLabels({"--max_steps", "8", "--thresholds", "tune",
                                             "--do_predict", "--test_file", Path("train.jsonl")}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("fitted to the validation data\n  threshold of fine "), std::string::npos)
      << run.out;
  const Json thresholds = ReadJson("out/config.json")["lathe_thresholds"];
  ASSERT_EQ(thresholds.size(), 3u);
  const Json report = ReadJson("out/eval_report.json");
  for (size_t c = 0; c < 3; ++c) EXPECT_EQ(report["classes"][c]["threshold"], thresholds[c]);
  EXPECT_EQ(report["micro"]["f1"], ReadJson("out/eval_results.json")["eval_f1"]);

  const std::vector<std::string> names = {"fine", "long", "poor"};
  for (const Json& line : Predict("out", {"good film", "bad film", "film"})) {
    Json expected = Json::array();
    for (size_t c = 0; c < 3; ++c) {
      if (line["scores"][names[c]] > thresholds[c]) expected.push_back(names[c]);
    }
    EXPECT_EQ(line["labels"], expected) << line;
  }
  // A model that is only loaded gives the same numbers.
  ASSERT_EQ(RunProgram("lathe", {"evaluate", Path("out"), Path("train.jsonl"), "--output",
                                 Path("again.json")})
                .exit_code,
            0);
  EXPECT_EQ(ReadJson("again.json")["micro"], report["micro"]);
  // A training that starts from it begins without them.
  ASSERT_EQ(RunProgram("finetune",
                       {"--model_name_or_path", Path("out"), "--train_file", Path("train.jsonl"),
                        "--do_train", "--max_steps", "1", "--output_dir", Path("next")})
                .exit_code,
            0);
  EXPECT_FALSE(ReadJson("next/config.json").contains("lathe_thresholds"));
}

TEST_F(DecisionsTest, TheDefaultMayBeGivenForOneLabel) {
  for (const char* half : {"0.5", "0.50"}) {
    const RunResult run =
        Train({"--max_steps", "1", "--thresholds", half, "--overwrite_output_dir"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_FALSE(ReadJson("out/config.json").contains("lathe_thresholds"));
  }
  Write("arguments.json", R"({"thresholds": 0.5})");
  EXPECT_EQ(
      Train({"--json_config", Path("arguments.json"), "--max_steps", "1", "--overwrite_output_dir"})
          .exit_code,
      0);
  EXPECT_EQ(RunProgram("finetune",
                       {"--model_name_or_path", Path("out"), "--do_eval", "--validation_file",
                        Path("dev.csv"), "--thresholds", "0.5", "--output_dir", Path("elsewhere")})
                .exit_code,
            0);
  for (const char* other : {"0.4", "tune", "negative=0.5,positive=0.5"}) {
    ExpectError(Train({"--do_eval", "--thresholds", other, "--overwrite_output_dir"}),
                "thresholds are for several labels at once, and the labels are "
                "single_label_classification",
                2);
  }
}

TEST_F(DecisionsTest, GivenThresholds) {
  WriteSeveralLabels();
  ASSERT_EQ(Train(SeveralLabels({"--max_steps", "2", "--thresholds", "0"})).exit_code, 0);
  EXPECT_EQ(ReadJson("out/config.json")["lathe_thresholds"], ParseJson("[0.0, 0.0, 0.0]"));
  EXPECT_EQ(Predict("out", {"film"})[0]["labels"].size(), 3u);
  EXPECT_EQ(ReadJson("out/eval_report.json")["macro"]["recall"], 1.0);

  const std::vector<std::string> evaluate = {
      "--model_name_or_path", Path("out"),         "--do_eval",
      "--validation_file",    Path("train.jsonl"), "--thresholds",
      "fine=1,poor=0,long=1", "--output_dir"};
  const auto evaluate_into = [&](const std::string& folder) {
    std::vector<std::string> args = evaluate;
    args.push_back(Path(folder));
    return RunProgram("finetune", args);
  };
  ExpectError(evaluate_into("elsewhere"), "must be the model's folder", 2);
  ASSERT_EQ(evaluate_into("out").exit_code, 0);
  EXPECT_EQ(Predict("out", {"film"})[0]["labels"], ParseJson("[\"poor\"]"));

  // Labels with commas need an object.
  Write("train.jsonl",
        "{\"text\": \"good film\", \"label\": [\"a, b\"]}\n"
        "{\"text\": \"bad film\", \"label\": [\"c\"]}\n");
  Write("thresholds.json", "{\"c\": 1, \"a, b\": 0}");
  for (const std::string& thresholds :
       {std::string("{\"c\": 1, \"a, b\": 0}"), Path("thresholds.json")}) {
    ASSERT_EQ(Train({"--train_file", Path("train.jsonl"), "--max_steps", "1", "--thresholds",
                     thresholds, "--overwrite_output_dir"})
                  .exit_code,
              0);
    EXPECT_EQ(ReadJson("out/config.json")["lathe_thresholds"], ParseJson("[0.0, 1.0]"));
    EXPECT_EQ(Predict("out", {"film"})[0]["labels"], ParseJson("[\"a, b\"]"));
  }
  WriteSeveralLabels();

  ExpectError(Train(SeveralLabels({"--thresholds", "fine=0.5", "--overwrite_output_dir"})),
              "thresholds names no value for label \"long\"", 2);
  ExpectError(Train(SeveralLabels({"--thresholds", "odd=0.5", "--overwrite_output_dir"})),
              "thresholds names \"odd\", which is no label", 2);
  ExpectError(Train({"--thresholds", "0.3", "--overwrite_output_dir"}),
              "thresholds are for several labels at once", 2);
}

TEST_F(DecisionsTest, TheTemperatureLowersTheLogLossAndChangesNoLogit) {
  // Labels that are wrong show a model that is sure of all of them to be too sure.
  Write("dev.csv", Read("dev.csv") + "the film is great,negative\na dull plot,positive\n");
  const std::vector<std::string> more = {"--do_eval",    "--num_train_epochs", "6",
                                         "--do_predict", "--test_file",        Path("dev.csv")};
  ASSERT_EQ(Train(more).exit_code, 0);
  std::vector<std::string> calibrated = more;
  calibrated.insert(calibrated.end(), {"--calibrate", "temperature", "--output_dir", Path("warm")});
  const RunResult run = Train(calibrated);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("\n  temperature  "), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("est temperature, because"), std::string::npos) << run.out;
  const double temperature = ReadJson("warm/config.json")["lathe_temperature"];
  EXPECT_EQ(Read("warm/model.safetensors"), Read("out/model.safetensors"));
  const Json before = ReadJson("out/eval_report.json"), after = ReadJson("warm/eval_report.json");
  EXPECT_EQ(after["loss"], before["loss"]);
  EXPECT_EQ(after["accuracy"], before["accuracy"]);
  EXPECT_LT(after["log_loss"], before["log_loss"]);
  EXPECT_EQ(after["temperature"], temperature);
  const auto odds = [&](const std::string& folder) {
    const Json scores = Predict(folder, {"the film is great"})[0]["scores"];
    return std::log(scores["positive"].get<double>() / scores["negative"].get<double>());
  };
  const double cold = odds("out");
  EXPECT_NEAR(odds("warm"), cold / temperature, 1e-3 * std::abs(cold / temperature) + 1e-4);
  std::istringstream a(Read("out/predict_results.tsv")), b(Read("warm/predict_results.tsv"));
  for (std::string x, y; std::getline(a, x) && std::getline(b, y);) {
    size_t end = 0;
    for (int tab = 0; tab < 4; ++tab) end = x.find('\t', end + 1);
    EXPECT_EQ(x.substr(0, end), y.substr(0, end));  // up to the logits
  }
}

TEST_F(DecisionsTest, ATemperatureAtItsBoundIsNamed) {
  const auto expect_note = [&](const RunResult& run, double temperature, const std::string& note) {
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(ReadJson("out/config.json")["lathe_temperature"], temperature);
    EXPECT_NE(run.out.find(note), std::string::npos) << run.out;
  };
  Write("dev.csv", "sentence,label\nthe film is great,positive\na dull plot,negative\n");
  expect_note(Train({"--do_eval", "--num_train_epochs", "6", "--calibrate", "temperature"}), 0.01,
              "\nnote: this is the lowest temperature, because the validation data have next to no "
              "errors");
  Write("dev.csv", "sentence,label\nthe film is great,negative\na dull plot,positive\n");
  expect_note(RunProgram("finetune", {"--model_name_or_path", Path("out"), "--do_eval",
                                      "--validation_file", Path("dev.csv"), "--calibrate",
                                      "temperature", "--output_dir", Path("out")}),
              100,
              "\nnote: this is the highest temperature, because the predictions for the validation "
              "data are no better than chance");
}

// Its manifest would no longer fit, and no training could go on from it.
TEST_F(DecisionsTest, ACheckpointIsNotFitted) {
  ASSERT_EQ(Train({"--max_steps", "2", "--save_steps", "2"}).exit_code, 0);
  const std::string checkpoint = Path("out/checkpoint-2");
  const std::string before = Read("out/checkpoint-2/config.json");
  ExpectError(RunProgram("finetune", {"--model_name_or_path", checkpoint, "--do_eval",
                                      "--validation_file", Path("dev.csv"), "--calibrate",
                                      "temperature", "--output_dir", checkpoint}),
              checkpoint +
                  " is a checkpoint, and no training could go on from it with another "
                  "config.json",
              2);
  EXPECT_EQ(Read("out/checkpoint-2/config.json"), before);
}

TEST_F(DecisionsTest, SeveralProcessesFitAsOne) {
  WriteSeveralLabels();
  // The batch of all processes has 8 texts.
  const auto options = [&](const char* batch_size) {
    return SeveralLabels({"--max_steps", "4", "--thresholds", "tune", "--calibrate", "temperature",
                          "--per_device_train_batch_size", batch_size});
  };
  ASSERT_EQ(Launch(1, Finetune("one", options("8"))).exit_code, 0);
  const RunResult run = Launch(2, Finetune("two", options("4")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json one = ReadJson("one/config.json"), two = ReadJson("two/config.json");
  EXPECT_NEAR(one["lathe_temperature"], two["lathe_temperature"],
              1e-2 * one["lathe_temperature"].get<double>());
  for (size_t c = 0; c < 3; ++c)
    EXPECT_NEAR(one["lathe_thresholds"][c], two["lathe_thresholds"][c], 1e-2);
}

TEST_F(DecisionsTest, WrongKeysInTheConfigAreReported) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  Json config = ReadJson("out/config.json");
  config["lathe_thresholds"] = {0.5, 0.5};
  Write("out/config.json", DumpJson(config));
  ExpectError(RunProgram("lathe", {"predict", Path("out"), "x"}),
              "config.json: \"lathe_thresholds\" is for models of several labels at once");
  config.erase("lathe_thresholds");
  config["lathe_temperature"] = 0;
  Write("out/config.json", DumpJson(config));
  ExpectError(RunProgram("lathe", {"evaluate", Path("out"), Path("dev.csv")}),
              "config.json: \"lathe_temperature\" must be above 0 but is 0");
}

}  // namespace
}  // namespace lathe
