// Runs the program in csv_classifier.cc on a table that is made here.
#include <fstream>
#include <random>
#include <sstream>

#include "lathe/examples/example_testing.h"

namespace lathe {
namespace {

// Columns of very different sizes, and one that never changes. The class depends on all others.
class CsvClassifierTest : public ExampleTest {
 protected:
  void SetUp() override {
    ExampleTest::SetUp();
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    std::ofstream train(Path("train.csv")), later(Path("later.csv"));
    train << "income,share,constant,kind,year\n";
    later << "year,constant,share,income\n";  // in another order, without the label
    const char* kinds[] = {"low", "middle", "high"};
    for (int i = 0; i < 360; ++i) {
      const auto kind = static_cast<int>(random() % 3);
      const double income = 50000 + 9000 * (kind + 0.3 * normal(random));
      const double share = 0.01 + 0.002 * (kind + 0.3 * normal(random));
      const double year = 2000 - 5 * (kind + 0.3 * normal(random));
      if (i < 300) {
        train << income << ',' << share << ",7," << kinds[kind] << ',' << year << '\n';
      } else {
        later << year << ",7," << share << ',' << income << '\n';
        expected_.emplace_back(kinds[kind]);
      }
    }
    program_ = {"examples/csv_classifier", "train", Path("train.csv"), "kind", Path("model")};
  }
  std::vector<std::string> program_, expected_;
};

TEST_F(CsvClassifierTest, LearnsAndPredictsByTheSavedStatistics) {
  const std::string alone = Run(program_);
  EXPECT_GE(NumbersAfter("accuracy", alone).back(), 0.95) << alone;
  std::istringstream predicted(
      Run({"examples/csv_classifier", "predict", Path("later.csv"), Path("model")}));
  size_t correct = 0, count = 0;
  for (std::string kind; predicted >> kind; ++count)
    correct += count < expected_.size() && kind == expected_[count];
  EXPECT_EQ(count, expected_.size());
  EXPECT_GE(correct, 57u);  // of 60
  ExpectSameLosses(alone, 2, program_, 1e-5);
}

TEST_F(CsvClassifierTest, NamesWhatIsMissing) {
  const auto error = [&](const std::vector<std::string>& arguments) {
    const RunResult run = RunProgram("examples/csv_classifier", arguments);
    EXPECT_EQ(run.exit_code, 1);
    return run.err;
  };
  EXPECT_NE(error({"train", Path("train.csv"), "class", Path("model")}).find("\"class\""),
            std::string::npos);
  EXPECT_TRUE(error({"predict", Path("later.csv"), Path("none")})
                  .starts_with("error: " + Path("none") + "/columns.csv: "));
  Run(program_);
  std::ofstream(Path("short.csv")) << "year,constant,share\n2000,7,0.01\n";
  EXPECT_NE(error({"predict", Path("short.csv"), Path("model")}).find("\"income\""),
            std::string::npos);
}

}  // namespace
}  // namespace lathe
