#include "lathe/train/report/evaluation_figures.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/train/report/report_testing.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

TEST(EvaluationFigures, ShowClassesAndCalibration) {
  const std::vector<Figure> figures = EvaluationFigures(SomeEvaluation(3));
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].row_names, (std::vector<std::string>{"<0>", "<1>", "<2>"}));
  EXPECT_EQ(figures[0].series[0].y, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(Count(figures[0].svg, "<rect"), 9u);  // no bars for the recall; three of the legend
  EXPECT_EQ(Count(figures[0].svg, ">undefined recall</text>"), 3u);
  EXPECT_TRUE(figures[0].note.starts_with("A recall is undefined without samples"));
  EXPECT_EQ(figures[1].series[0].x, (std::vector<double>{0.75, 1}));
  EXPECT_NE(figures[1].svg.find("class=\"reference\""), std::string::npos);
  EXPECT_TRUE(EvaluationFigures(Json::object()).empty());
}

Figure CurvesOf(const Json& report) {
  for (const Figure& figure : EvaluationFigures(report)) {
    if (figure.name == "precision_recall") return figure;
  }
  return {};
}

TEST(EvaluationFigures, ShowPrecisionAndRecall) {
  const Figure figure = CurvesOf(WithCurves(SomeEvaluation(3)));
  EXPECT_EQ(figure.title, "Precision and recall");
  ASSERT_EQ(figure.series.size(), 3u);
  EXPECT_EQ(figure.series[0].name, "<1>");
  EXPECT_EQ(figure.series[0].x, (std::vector<double>{0, 0.3, 1, 1}));
  EXPECT_EQ(figure.series[0].y, (std::vector<double>{1, 0.75, 0.5, 0.25}));
  EXPECT_EQ(figure.series[2].name, "<0>: undefined");
  EXPECT_TRUE(figure.series[2].x.empty());
  ASSERT_EQ(figure.table.size(), 2u);
  EXPECT_EQ(figure.table[1].x[3], 0.3);
  EXPECT_EQ(figure.table[1].y, (std::vector<double>{1, .75, .75, .75, .5, .5, .5, .5, .5, .5, .5}));
  EXPECT_TRUE(figure.note.ends_with("Undefined, since the data have no sample: <0>."));
  // A step to each point, and a line of the legend for each class.
  EXPECT_EQ(Count(figure.svg, "V"), 2 * 3u);
  EXPECT_EQ(Count(figure.svg, "<path class=\"s1\""), 2u);
  EXPECT_EQ(Count(figure.svg, "<path class=\"s2\""), 1u);
}

TEST(EvaluationFigures, ShowTheCurveOfTheSecondOfTwoClasses) {
  Json report = WithCurves(SomeEvaluation(2));
  report["classes"][0].erase("precision_recall_curve");
  const Figure figure = CurvesOf(report);
  EXPECT_EQ(figure.title, "Precision and recall of <1>");
  ASSERT_EQ(figure.series.size(), 1u);
  EXPECT_EQ(figure.note.find("Undefined"), std::string::npos);
  report["classes"][1]["precision_recall_curve"] = nullptr;
  EXPECT_EQ(CurvesOf(report).name, "");
}

TEST(EvaluationFigures, ShowTheCurvesOfRareClasses) {
  Json report = SomeEvaluation(40);  // class c has c samples
  report["classes"][39]["support"] = 1;
  report["classes"][20]["support"] = 0;
  const Figure figure = CurvesOf(WithCurves(report));
  EXPECT_EQ(figure.title, "Precision and recall of the 8 rarest of 40 classes");
  EXPECT_NE(figure.svg.find(">recall of the 8 rarest of 40 classes<"), std::string::npos);
  std::vector<std::string> names;
  for (const Series& series : figure.series) names.push_back(series.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"<1>", "<2>", "<3>", "<4>", "<5>", "<6>", "<7>", "<39>"}));
  EXPECT_TRUE(figure.note.ends_with("no sample: <0>, <20>.")) << figure.note;
  for (Json& one : report["classes"]) one["support"] = one["label"] == "<1>" ? 1 : 0;
  EXPECT_TRUE(CurvesOf(WithCurves(report)).note.ends_with("<9>, <10> and 29 more."));
}

TEST(EvaluationFigures, ShowTheMostFrequentOfManyClasses) {
  const std::vector<Figure> figures = EvaluationFigures(SomeEvaluation(40));
  ASSERT_EQ(figures[0].row_names.size(), 30u);
  EXPECT_EQ(figures[0].row_names[0], "<10>");
}

}  // namespace
}  // namespace lathe
