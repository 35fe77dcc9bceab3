#include "lathe/apps/lathe/prediction_rows.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lathe/core/base/file.h"
#include "lathe/data/datasets/text_table_reader.h"

namespace lathe {
namespace {

class PredictionRowsTest : public testing::Test {
 protected:
  ~PredictionRowsTest() override {
    for (const std::string& path : made_) std::filesystem::remove(path);
  }
  std::string Path(const std::string& name) {
    made_.push_back(testing::TempDir() + "/rows_" + name);
    return made_.back();
  }
  // Writes the text to a file, adds the predictions to its rows, and returns the new file.
  std::string WithPredictions(const std::string& text, const std::string& extension,
                              const std::vector<Prediction>& predictions,
                              PredictionRows::Options options) {
    const std::string input = Path("in" + extension), output = Path("out" + extension);
    std::ofstream(input, std::ios::binary) << text;
    PredictionRows rows({input}, output, std::move(options));
    TextTableReader reader(input, InvalidUtf8::kReplace, /*block_bytes=*/16);
    TextTable block = reader.Next();
    rows.Open(output, block);
    size_t done = 0;
    for (; block.rows() > 0; block = reader.Next()) {
      const auto count = static_cast<size_t>(block.rows());
      rows.Write(block, 0, std::span(predictions).subspan(done, count));
      done += count;
    }
    rows.Close();
    EXPECT_EQ(done, predictions.size());
    return ReadFile(output);
  }

  PredictionRows::Options options_{.names = {"bad", "go,od"}};
  std::vector<Prediction> two_ = {{.labels = {1}, .scores = {0.25, 0.75}},
                                  {.labels = {0}, .scores = {0.87654321, 0.12345679}}};
  std::vector<std::string> made_;
};

TEST_F(PredictionRowsTest, CsvGetsQuotesWhereItNeedsThem) {
  EXPECT_EQ(
      WithPredictions("id,text\r\n1,\"a, \"\"b\"\"\nc\"\r\n\r\n2,d\r\n", ".csv", two_, options_),
      "id,text,prediction,probability\n"
      "1,\"a, \"\"b\"\"\nc\",\"go,od\",0.75\n"
      "2,d,bad,0.876543\n");
}

TEST_F(PredictionRowsTest, TsvWithAllScores) {
  options_.all_scores = true;
  EXPECT_EQ(WithPredictions("text\tother\na\t\"x\nb\ty", ".tsv", two_, options_),
            "text\tother\tprediction\tprobability\tprobability_bad\tprobability_go,od\n"
            "a\t\"x\tgo,od\t0.75\t0.25\t0.75\n"
            "b\ty\tbad\t0.876543\t0.876543\t0.123457\n");
}

TEST_F(PredictionRowsTest, JsonLinesStayAsTheyAre) {
  EXPECT_EQ(WithPredictions("\xEF\xBB\xBF{\"n\": 1.50, \"text\":\"\\u00e9 }\" }  \r\n\n"
                            " {\"text\":\"\xFF\",\"n\":123456789012345678901234567890}\n",
                            ".jsonl", two_, options_),
            "{\"n\": 1.50, \"text\":\"\\u00e9 }\" ,\"prediction\":\"go,od\",\"probability\":0.75}\n"
            " {\"text\":\"\xEF\xBF\xBD\",\"n\":123456789012345678901234567890,"
            "\"prediction\":\"bad\",\"probability\":0.876543}\n");
}

TEST_F(PredictionRowsTest, SeveralLabelsAreArrays) {
  options_.kind = LabelKind::kMultiLabel;
  const std::vector<Prediction> predictions = {{.labels = {0, 1}, .scores = {0.5625, 0.75}},
                                               {.labels = {}, .scores = {0.1, 0.2}}};
  EXPECT_EQ(WithPredictions("text\na\nb\n", ".csv", predictions, options_),
            "text,prediction,probability\n"
            "a,\"[\"\"bad\"\",\"\"go,od\"\"]\",\"[0.5625,0.75]\"\n"
            "b,[],[]\n");
  EXPECT_EQ(WithPredictions("{\"text\":\"a\"}\n{\"text\":\"b\"}", ".json", predictions, options_),
            "{\"text\":\"a\",\"prediction\":[\"bad\",\"go,od\"],\"probability\":[0.5625,0.75]}\n"
            "{\"text\":\"b\",\"prediction\":[],\"probability\":[]}\n");
}

TEST_F(PredictionRowsTest, ARegressionHasAValueOnly) {
  options_ = {.kind = LabelKind::kRegression, .names = {"LABEL_0"}};
  EXPECT_EQ(WithPredictions("text\na\n", ".csv", {{.labels = {0}, .scores = {-3.25}}}, options_),
            "text,prediction\na,-3.25\n");
}

TEST_F(PredictionRowsTest, SeveralFilesBecomeOne) {
  const auto written = [&](const std::vector<std::string>& texts, const std::string& extension) {
    std::vector<std::string> inputs;
    for (size_t i = 0; i < texts.size(); ++i) {
      inputs.push_back(Path(std::to_string(i) + extension));
      std::ofstream(inputs.back(), std::ios::binary) << texts[i];
    }
    inputs.push_back(inputs[0]);  // a file may come twice, here after another one
    inputs.push_back(inputs[0]);
    const std::string output = Path("all" + extension);
    PredictionRows rows(inputs, output, options_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TextTable table = ReadTextTable(inputs[i]);
      if (i == 0) rows.Open(output, table);
      rows.Write(table, 0, std::span(two_).subspan(i == 1 ? 1 : 0, 1));
    }
    rows.Close();
    return ReadFile(output);
  };
  EXPECT_EQ(written({"id,text\n1,a\n", "text,id\nb,2\n"}, ".csv"),
            "id,text,prediction,probability\n1,a,\"go,od\",0.75\n2,b,bad,0.876543\n"
            "1,a,\"go,od\",0.75\n1,a,\"go,od\",0.75\n");
  const std::string first = "{\"t\":\"a\",\"prediction\":\"go,od\",\"probability\":0.75}\n";
  EXPECT_EQ(
      written({"\n{\"t\":\"a\"}", "{\"t\":\"b\"}\n"}, ".jsonl"),
      first + "{\"t\":\"b\",\"prediction\":\"bad\",\"probability\":0.876543}\n" + first + first);
}

TEST_F(PredictionRowsTest, TheErrorOfAFileThatHasShrunkIsAboutThatFile) {
  const std::string input = Path("shrinks.jsonl"), output = Path("of_shrinks.jsonl");
  std::ofstream(input) << "{\"t\":\"a\"}\n{\"t\":\"b\"}\n";
  const TextTable block = ReadTextTable(input);
  std::ofstream(input) << "{\"t\":\"a\"}\n";
  PredictionRows rows({input}, output, options_);
  rows.Open(output, block);
  try {
    rows.Write(block, 0, two_);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), input + ": the file has fewer lines than when it was read at first");
    ASSERT_NE(e.detail<AboutFile>(), nullptr);
    EXPECT_EQ(e.detail<AboutFile>()->path, input);
  }
}

TEST_F(PredictionRowsTest, RefusesWhatItCannotGiveBack) {
  EXPECT_THROW(WithPredictions("text,prediction\na,b\nc,d\n", ".csv", two_, options_), Error);
  EXPECT_THROW(PredictionRows::CheckPaths({"a.csv"}, "b.jsonl"), Error);
  EXPECT_THROW(PredictionRows::CheckPaths({"a.csv"}, "b"), Error);
  EXPECT_THROW(PredictionRows::CheckPaths({"a.csv.gz"}, "b.csv.gz"), Error);
  EXPECT_THROW(PredictionRows::CheckPaths({"a.csv", "b.tsv"}, "c.csv"), Error);
  EXPECT_THROW(PredictionRows::CheckPaths({"a.csv", "b.csv.gz"}, "c.csv"), Error);
  EXPECT_NO_THROW(PredictionRows::CheckPaths({"a.CSV", "b.csv"}, "c.csv"));
  EXPECT_NO_THROW(PredictionRows::CheckPaths({"a.json", "b.jsonl"}, "c.jsonl"));
  std::filesystem::create_directory(Path("folder.csv"));
  EXPECT_THROW(PredictionRows::CheckPaths({"a.csv"}, made_.back()), Error);
}

}  // namespace
}  // namespace lathe
