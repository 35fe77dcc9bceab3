// Runs the programs of this folder that read texts. In the texts one word decides the label.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "lathe/core/json/json_text.h"
#include "lathe/examples/example_testing.h"

namespace lathe {
namespace {

// Returns the rows of a file of sentences and labels, which CliTest makes.
std::vector<std::pair<std::string, bool>> ReadRows(const std::string& csv) {
  std::vector<std::pair<std::string, bool>> rows;
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);  // the names of the columns
  while (std::getline(lines, line)) {
    const size_t comma = line.rfind(',');
    rows.emplace_back(line.substr(0, comma), line.substr(comma) == ",positive");
  }
  return rows;
}

class TextProgramsTest : public ExampleTest {
 protected:
  // Expects that the program reaches the accuracy, and that two processes have the same losses.
  void Check(const std::vector<std::string>& program, double accuracy, double tolerance) {
    setenv("ACCELERATE_USE_CPU", "1", 1);
    alone_ = Run(program);
    ASSERT_FALSE(NumbersAfter("accuracy", alone_).empty()) << alone_;
    EXPECT_GE(NumbersAfter("accuracy", alone_).back(), accuracy) << alone_;
    ExpectSameLosses(alone_, 2, program, tolerance);
  }
  std::string alone_;
};

TEST_F(TextProgramsTest, TextConvolution) {
  Check({"examples/text_convolution", Path("model"), Path("train.csv"), Path("dev.csv")}, 0.95,
        1e-4);
}

TEST_F(TextProgramsTest, SiameseBert) {
  for (const std::string name : {"train", "dev"}) {
    const auto rows = ReadRows(Read(name + ".csv"));
    std::string pairs = "first,second,similar\n";
    for (size_t i = 0; i < 3 * rows.size(); ++i) {
      const auto &a = rows[i % rows.size()], &b = rows[(7 * i + i / rows.size()) % rows.size()];
      pairs += a.first + "," + b.first + (a.second == b.second ? ",1\n" : ",0\n");
    }
    Write(name + "_pairs.csv", pairs);
  }
  Check({"examples/siamese_bert", Path("model"), Path("train_pairs.csv"), Path("dev_pairs.csv")},
        0.9, 1e-4);
}

TEST_F(TextProgramsTest, DistillBert) {
  ASSERT_EQ(Train({"--num_train_epochs", "10"}).exit_code, 0);  // the teacher
  nlohmann::json config = ReadJson("model/config.json");
  config.update({{"hidden_size", 8}, {"num_hidden_layers", 1}, {"intermediate_size", 16}});
  std::filesystem::create_directories(Path("student"));
  Write("student/config.json", DumpJson(config));
  Check({"examples/distill_bert", Path("out"), Path("student"), Path("train.csv"), Path("dev.csv"),
         Path("distilled")},
        0.9, 1e-4);
  EXPECT_EQ(ReadJson("distilled/config.json").at("hidden_size"), 8);
  const RunResult evaluation =
      RunProgram("lathe", {"evaluate", Path("distilled"), Path("dev.csv")});
  EXPECT_EQ(evaluation.exit_code, 0) << evaluation.err;
}

TEST_F(TextProgramsTest, TwoHeads) {
  for (const std::string name : {"train", "dev"}) {
    std::string csv = "text,class,score\n";
    for (const auto& [text, positive] : ReadRows(Read(name + ".csv"))) {
      const auto spaces = std::count(text.begin(), text.end(), ' ');
      csv += text + (positive ? ",1," : ",0,") +
             std::to_string(0.25 * static_cast<double>(spaces)) + "\n";
    }
    Write(name + "_two.csv", csv);
  }
  Check({"examples/two_heads", Path("model"), Path("train_two.csv"), Path("dev_two.csv")}, 0.9,
        1e-4);
  EXPECT_LT(NumbersAfter("mse", alone_).back(), 0.1) << alone_;
}

}  // namespace
}  // namespace lathe
