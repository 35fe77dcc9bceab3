#include "lathe/apps/results/results_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace lathe {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string Printed(const EvaluationReport& report, const std::vector<std::string>& names) {
  std::ostringstream out;
  PrintReport(out, report, names);
  for (const std::string& line : Lines(out.str())) EXPECT_LE(line.size(), 80u) << line;
  return out.str();
}

TEST(ResultsTableTest, ShowsClassesMeansAndConfusion) {
  const EvaluationReport report = MakeEvaluationReport(
      {.num_labels = 3, .logits = {3, 1, 0, 1, 2, 0, 2, 1, 0}, .classes = {0, 0, 2}});
  EXPECT_EQ(Printed(report, {"good", "bad", "neither of the two, which has a long name"}),
            "classes                         precision     recall         f1    support\n"
            "  good                             0.5000     0.5000     0.5000          2\n"
            "  bad                              0.0000  undefined     0.0000          0\n"
            "  neither of the two, which h…  undefined     0.0000     0.0000          1\n"
            "  micro mean                       0.3333     0.3333     0.3333          3\n"
            "  macro mean                       0.2500     0.2500     0.1667          3\n"
            "  weighted mean                    0.5000     0.3333     0.3333          3\n"
            "  roc_auc                     0.6250\n"
            "  average_precision           0.6667\n"
            "  log_loss                    1.3284\n"
            "  expected_calibration_error  0.4956\n"
            "confusion, predicted as              good        bad  neither …\n"
            "  good                                  1          1          0\n"
            "  bad                                   0          0          0\n"
            "  neither of the two, which h…          1          0          0\n");
}

TEST(ResultsTableTest, CountsAnswersOfSeveralLabels) {
  const EvaluationReport report = MakeEvaluationReport({.kind = LabelKind::kMultiLabel,
                                                        .num_labels = 2,
                                                        .logits = {3, -1, 2, 1, -2, -1},
                                                        .scores = {1, 0, 0, 0, 1, 0}});
  const std::string text = Printed(report, {"good", "bad"});
  EXPECT_TRUE(text.ends_with(
      "answers, true (T) or false (F)         TP         FP         FN         TN\n"
      "  good                                  1          1          1          0\n"
      "  bad                                   0          1          0          2\n"))
      << text;
}

TEST(ResultsTableTest, OfManyClassesThoseWithMostSamples) {
  constexpr int64_t kClasses = 150;
  Predictions predictions{.num_labels = kClasses};
  std::vector<std::string> names;
  for (int64_t c = 0; c < kClasses; ++c) {
    names.push_back("intent " + std::to_string(c));
    for (int64_t i = 0; i < (c == 77 ? 3 : c % 2); ++i) {
      predictions.classes.push_back(c);
      predictions.logits.resize(predictions.logits.size() + kClasses);
      predictions.logits[predictions.logits.size() - kClasses + 9] = 1;  // predicts class 9
    }
  }
  const std::string text = Printed(MakeEvaluationReport(predictions), names);
  const std::vector<std::string> lines = Lines(text);
  EXPECT_EQ(lines[1].substr(0, 12), "  intent 77 ");
  EXPECT_EQ(lines[2].substr(0, 11), "  intent 1 ");
  EXPECT_EQ(lines[21], "  and 130 other classes with fewer samples");
  EXPECT_NE(text.find("confused most often"), std::string::npos);
  EXPECT_EQ(lines.size(), 1u + 20 + 1 + 3 + 4 + 1 + 5);
}

TEST(ResultsTableTest, NamesFitIntoTheirColumns) {
  EXPECT_EQ(FitColumns("abc", 5), "abc  ");
  EXPECT_EQ(FitColumns("abcde", 5), "abcde");
  EXPECT_EQ(FitColumns("abcdef", 5), "abcd…");
  EXPECT_EQ(FitColumns("好电影", 6), "好电影");
  EXPECT_EQ(FitColumns("好电影", 5), "好电…");
  EXPECT_EQ(FitColumns("好电影", 4), "好… ");
  EXPECT_EQ(FitColumns("a\tb\n", 4), "a b ");
  EXPECT_EQ(FitColumns("e\xCC\x81t\xC3\xA9", 4), "e\xCC\x81t\xC3\xA9 ");
  EXPECT_EQ(FitColumns("", 2), "  ");
}

}  // namespace
}  // namespace lathe
