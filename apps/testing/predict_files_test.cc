// `lathe predict` with files, and with several labels at once.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
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

class PredictFilesTest : public CliTest {
 protected:
  RunResult Predict(const std::vector<std::string>& more, const RunOptions& options = {}) const {
    std::vector<std::string> args = {"predict", Path("out")};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("lathe", args, options);
  }
  // The names of all files in the test's folder.
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_))
      names.insert(entry.path().filename());
    return names;
  }
  void TrainSeveralLabels() const {
    std::string rows;
    for (int i = 0; i < 48; ++i) {
      rows += i % 3 == 0   ? "{\"text\": \"good film\", \"label\": [\"fine\"]}\n"
              : i % 3 == 1 ? "{\"text\": \"bad film\", \"label\": [\"poor\", \"long\"]}\n"
                           : "{\"text\": \"film\", \"label\": []}\n";
    }
    Write("train.jsonl", rows);
    ASSERT_EQ(Train({"--train_file", Path("train.jsonl"), "--num_train_epochs", "20"}).exit_code,
              0);
  }
};

TEST_F(PredictFilesTest, GivesTheRowsOfAFileBack) {
  ASSERT_EQ(Train({"--num_train_epochs", "6"}).exit_code, 0);
  Write("in.csv", "id,review,label\n7,\"the film, is great\",x\n8,a dull plot,y\n9,\"\",z\n");
  const RunResult run = Predict({"--file", Path("in.csv"), "--text_columns", "review", "--output",
                                 Path("done.csv"), "--batch_size", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "");
  const auto rows = Lines(Read("done.csv"));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0], "id,review,label,prediction,probability");
  EXPECT_TRUE(rows[1].starts_with("7,\"the film, is great\",x,")) << rows[1];
  EXPECT_TRUE(rows[2].starts_with("8,a dull plot,y,")) << rows[2];
  EXPECT_TRUE(rows[3].starts_with("9,,z,")) << rows[3];

  // Without --output the same predictions are printed.
  const auto printed = Lines(
      Predict({"--file", Path("in.csv"), "--text_columns", "review", "--batch_size", "2"}).out);
  ASSERT_EQ(printed.size(), 3u);
  for (size_t i = 0; i < printed.size(); ++i) {
    const Json json = ParseJson(printed[i]);
    const std::string end = "," + json["label"].get<std::string>() + "," + DumpJson(json["score"]);
    EXPECT_TRUE(rows[i + 1].ends_with(end)) << rows[i + 1] << " and " << end;
    EXPECT_LE(DumpJson(json["score"]).size(), 8u) << "six digits behind 0.";
  }
}

TEST_F(PredictFilesTest, PairsAreTwoColumns) {
  ASSERT_EQ(Train({"--max_steps", "4"}).exit_code, 0);
  Write("in.jsonl",
        "{\"a\": \"good\", \"n\": 1.50, \"b\": \"film\"}\n{\"a\": \"bad\", \"n\": 2, \"b\": "
        "\"plot\"}\n");
  const RunResult run = Predict({"--file", Path("in.jsonl"), "--text_columns", "a,b", "--output",
                                 Path("done.jsonl"), "--all_scores"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = Lines(Read("done.jsonl"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(
      rows[0].starts_with("{\"a\": \"good\", \"n\": 1.50, \"b\": \"film\",\"prediction\":"));
  const RunResult pair = Predict({"--pairs", "good\tfilm", "--all_scores"});
  ASSERT_EQ(pair.exit_code, 0) << pair.err;
  const Json row = ParseJson(rows[0]), json = ParseJson(pair.out);
  EXPECT_EQ(row["prediction"], json["label"]);
  EXPECT_NEAR(row["probability"], json["score"], 2e-6);
  EXPECT_NEAR(row["probability_positive"], json["scores"]["positive"], 2e-6);
}

// Rows of JSON lines are given back as they are, whatever lies under keys that nobody reads.
TEST_F(PredictFilesTest, UnusedKeysOfJsonMayHaveAnyValue) {
  ASSERT_EQ(Train({"--max_steps", "4"}).exit_code, 0);
  const std::vector<std::string> lines = {"{\"sentence\": \"good\", \"meta\": null, \"n\": 1",
                                          "{\"sentence\": \"bad\", \"meta\": {\"a\": {}}",
                                          "{\"new\": [null], \"sentence\": \"film\", \"n\": null"};
  std::string text;
  for (const std::string& line : lines) text += line + "}\n";
  Write("in.jsonl", text);
  const RunResult run = Predict({"--file", Path("in.jsonl"), "--output", Path("done.jsonl")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = Lines(Read("done.jsonl"));
  ASSERT_EQ(rows.size(), lines.size());
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(rows[i].starts_with(lines[i] + ",\"prediction\":")) << rows[i];
  const RunResult used = Predict({"--file", Path("in.jsonl"), "--text_columns", "n"});
  ExpectError(used, Path("in.jsonl") + ":2: key \"n\" is missing");
  EXPECT_NE(used.err.find("name the columns of texts with --text_columns\n"), std::string::npos)
      << used.err;
  Write("in.jsonl", text + "{\"sentence\": \"x\", \"prediction\": 1}\n");
  ExpectError(Predict({"--file", Path("in.jsonl"), "--output", Path("again.jsonl")}),
              "there is a column \"prediction\" already");
  EXPECT_FALSE(Exists("again.jsonl"));
}

TEST_F(PredictFilesTest, SeveralFilesAndPatterns) {
  ASSERT_EQ(Train({"--num_train_epochs", "2"}).exit_code, 0);
  std::filesystem::create_directory(Path("parts"));
  Write("parts/a.csv", "n,review\n1,the film is great\n2,a dull plot\n");
  Write("parts/b.csv", "review,n\n\"a good, good film\",3\n");
  Write("parts/c.csv", "n,review\n4,bad\n");
  Write("whole.csv",
        "n,review\n1,the film is great\n2,a dull plot\n3,\"a good, good film\"\n4,bad\n");
  const auto predict = [&](std::vector<std::string> files, const std::vector<std::string>& more) {
    files.insert(files.begin(), "--file");
    files.insert(files.end(), more.begin(), more.end());
    return Predict(files);
  };
  // Each file is a batch of its own, so the last digits may differ.
  const auto expect = [&](const RunResult& run, const RunResult& whole) {
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto lines = Lines(run.out), expected = Lines(whole.out);
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const Json a = ParseJson(lines[i]), b = ParseJson(expected[i]);
      EXPECT_EQ(a["label"], b["label"]);
      EXPECT_NEAR(a["score"], b["score"], 2e-6);
    }
  };
  const std::vector<std::string> review = {"--text_columns", "review"};
  const RunResult whole = predict({Path("whole.csv")}, review);
  ASSERT_EQ(Lines(whole.out).size(), 4u);
  const std::string a = Path("parts/a.csv"), b = Path("parts/b.csv"), c = Path("parts/c.csv");
  for (const std::vector<std::string>& files : std::vector<std::vector<std::string>>{
           {Path("parts/*.csv")}, {a, b, c}, {a + "," + b + "," + c}, {a, Path("parts/[bc].csv")}})
    expect(predict(files, review), whole);
  // A number is that of a column of the first file.
  expect(predict({a, b, c}, {"--text_columns", "2"}), whole);
  expect(predict({a, b, c}, {"--text_column_names", "1,review"}),
         predict({Path("whole.csv")}, {"--text_column_names", "n,review"}));
  // The model's folder may come last.
  expect(
      RunProgram("lathe", {"predict", "--text_columns", "review", "--file", a, b, c, Path("out")}),
      whole);

  ASSERT_EQ(
      predict({Path("parts/*.csv")}, {"--text_columns", "review", "--output", Path("done.csv")})
          .exit_code,
      0);
  const auto rows = Lines(Read("done.csv"));
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0], "n,review,prediction,probability");
  EXPECT_TRUE(rows[1].starts_with("1,the film is great,")) << rows[1];
  EXPECT_TRUE(rows[2].starts_with("2,a dull plot,")) << rows[2];
  EXPECT_TRUE(rows[3].starts_with("3,\"a good, good film\",")) << rows[3];
  EXPECT_TRUE(rows[4].starts_with("4,bad,")) << rows[4];
}

TEST_F(PredictFilesTest, MistakesInSeveralFilesAreReported) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  Write("a.csv", "sentence,n\ngood,1\n");
  Write("b.csv", "text,n\nbad,2\n");
  Write("c.tsv", "sentence\tn\nbad\t2\n");
  const std::string a = Path("a.csv"), b = Path("b.csv"), columns = "--text_columns";
  const RunResult none = Predict({"--file", Path("none*.csv")});
  ExpectError(none, "--file " + Path("none*.csv") + ": no file matches this pattern");
  ExpectError(Predict({"--file", a + ",," + b}), "--file has an empty name of a file");
  ExpectError(Predict({"--file", a, Path("out")}), "out: is a folder but --file must be a file");
  ExpectError(Predict({"--file", a, Path("c.tsv"), "--output", Path("x.csv")}),
              "c.tsv: --output needs files of one format, and that of " + a + " is another", 2);
  ExpectError(Predict({"--file", Path("a.csv.gz"), "--output", Path("x.csv")}),
              "a.csv.gz: rows can't be given back in this format", 2);
  const std::string help =
      std::regex_replace(RunProgram("lathe", {"predict", "--help"}).out, std::regex("\\s+"), " ");
  EXPECT_NE(help.find("Rows of compressed files (.gz, .zst) can't be written again"),
            std::string::npos)
      << help;
  ExpectError(Predict({"--file", a, columns, "3"}), a + ": there is no column 3; it has 2");
  ExpectError(Predict({"--file", a, columns, "1,sentence"}),
              "--text_columns names \"sentence\" twice, by its name and by its number");
  // The rows before the other file are predicted.
  const RunResult other = Predict({"--file", a, b, columns, "sentence"});
  ExpectError(other, b + ": its columns are text, n but those of " + a + " are sentence, n");
  EXPECT_NE(other.err.find("hint: all files of --file must have the same columns\n"),
            std::string::npos)
      << other.err;
  EXPECT_EQ(Lines(other.out).size(), 1u);
  ExpectError(RunProgram("lathe", {"predict", "--file", a, b}), "MODEL_DIR is missing", 2);
}

TEST_F(PredictFilesTest, SeveralLabelsListAllAboveOneHalf) {
  TrainSeveralLabels();
  const RunResult run = Predict({"bad film", "good film", "film"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto lines = Lines(run.out);
  ASSERT_EQ(lines.size(), 3u);
  const Json bad = ParseJson(lines[0]);
  EXPECT_EQ(bad["labels"], ParseJson("[\"long\", \"poor\"]"));
  EXPECT_EQ(bad["scores"].size(), 2u);
  EXPECT_GT(bad["scores"]["poor"], 0.5);

  const auto all = Lines(Predict({"bad film", "good film", "film", "--all_scores"}).out);
  ASSERT_EQ(all.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json some = ParseJson(lines[i]), every = ParseJson(all[i]);
    EXPECT_EQ(every["scores"].size(), 3u);
    EXPECT_EQ(every["labels"], some["labels"]);
    Json labels = Json::array();
    for (const auto& [name, score] : every["scores"].items()) {
      if (score <= 0.5) continue;
      labels.push_back(name);
      EXPECT_NEAR(some["scores"][name], score, 2e-6);
    }
    EXPECT_EQ(some["labels"], labels);
    EXPECT_EQ(some["scores"].size(), labels.size());
  }
}

TEST_F(PredictFilesTest, MistakesAreReported) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  Write("in.csv", "sentence\ngood\nbad\n");
  const std::string in = Path("in.csv");
  ExpectError(Predict({"--output", Path("x.csv"), "a text"}), "--output needs --file", 2);
  ExpectError(Predict({"--text_columns", "a"}), "--text_columns needs --file", 2);
  ExpectError(Predict({"a text", "--file", in}), "--file and the text \"a text\" contradict", 2);
  ExpectError(Predict({"--pairs", "--file", in}), "--file and --pairs contradict", 2);
  ExpectError(Predict({"--file", in, "--text_columns", "a,b,c"}), "takes one or two columns", 2);
  const RunResult no_file = Predict({"--file", Path("none.csv")});
  ExpectError(no_file, "none.csv: No such file");
  EXPECT_NE(no_file.err.find("hint: check --file\n"), std::string::npos) << no_file.err;
  ExpectError(Predict({"--file", Path("out")}), "out: is a folder but --file must be a file");
  const RunResult column = Predict({"--file", in, "--text_columns", "review"});
  ExpectError(column, "no column \"review\"; it has: sentence");
  EXPECT_NE(column.err.find("with --text_columns"), std::string::npos) << column.err;
  ExpectError(Predict({"--file", in, "--output", Path("x.tsv")}),
              "x.tsv: --output must have the format of ", 2);
  const RunResult no_folder = Predict({"--file", in, "--output", Path("no/x.csv")});
  ExpectError(no_folder, "no/x.csv: No such file");
  EXPECT_NE(no_folder.err.find("hint: check --output\n"), std::string::npos) << no_folder.err;
  Write("twice.csv", "sentence,prediction\ngood,1\n");
  ExpectError(Predict({"--file", Path("twice.csv"), "--text_columns", "sentence", "--output",
                       Path("x.csv")}),
              "there is a column \"prediction\" already");
}

TEST_F(PredictFilesTest, ABadRowLeavesTheOldOutput) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  Write("x.csv", "old");
  Write("in.csv", "sentence\ngood\nbad\nb\xff\n");
  const std::set<std::string> before = Names();
  const RunResult run = Predict({"--file", Path("in.csv"), "--output", Path("x.csv")});
  ExpectError(run, "in.csv:4: invalid UTF-8");
  EXPECT_NE(run.err.find("--invalid_utf8 replace"), std::string::npos) << run.err;
  Write("in.csv", "sentence\ngood\n" + std::string(8 << 20, ' ') + "\nbad,one column more\n");
  ExpectError(
      Predict({"--file", Path("in.csv"), "--text_columns", "sentence", "--output", Path("x.csv")}),
      "in.csv:4: expected 1 column (sentence) but got 2");
  Write("in.csv", "sentence\ngood\nbad\n");
  ExpectError(
      Predict({"--file", Path("in.csv"), "--output", Path("x.csv")}, {.max_file_bytes = 20}),
      "x.csv: ");
  EXPECT_EQ(Read("x.csv"), "old");
  EXPECT_EQ(Names(), before) << "a temporary file is left";
  ASSERT_EQ(Predict({"--file", Path("in.csv"), "--output", Path("in.csv")}).exit_code, 0);
  EXPECT_TRUE(Read("in.csv").starts_with("sentence,prediction,probability\ngood,"));
}

}  // namespace
}  // namespace lathe
