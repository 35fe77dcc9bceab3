#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "lathe/train/report/evaluation_figures.h"
#include "lathe/train/report/report_page.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(RoundTicks, LieInsideAtRoundDistances) {
  EXPECT_EQ(RoundTicks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(RoundTicks(3, 97, 4), (std::vector<double>{50}));
  EXPECT_EQ(RoundTicks(-2, 2, 4), (std::vector<double>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(RoundTicks(1, 1, 4), std::vector<double>());
  EXPECT_EQ(RoundTicks(0, std::nan(""), 4), std::vector<double>());
  for (double width = 1e-7; width < 1e9; width *= 3.7) {
    const std::vector<double> ticks = RoundTicks(-width / 3, width, 5);
    EXPECT_GE(ticks.size(), 2u) << width;
    EXPECT_LE(ticks.size(), 6u) << width;
    EXPECT_GE(ticks.front(), -width / 3 * (1 + 1e-6));
    EXPECT_LE(ticks.back(), width * (1 + 1e-6));
  }
}

TEST(Thinned, KeepsMeansOfNeighbours) {
  const Series series{.name = "a", .x = {1, 2, 3, 4, 5}, .y = {1, 3, 5, std::nan(""), 9}};
  EXPECT_EQ(Thinned(series, 5).x, series.x);
  const Series thin = Thinned(series, 3);
  EXPECT_EQ(thin.name, "a");
  EXPECT_EQ(thin.x, (std::vector<double>{1.5, 3, 5}));
  EXPECT_EQ(thin.y, (std::vector<double>{2, 5, 9}));
}

TEST(LineChart, PlacesPointsByTheirValues) {
  const std::string svg = LineChart({{.name = "a", .x = {0, 10}, .y = {0, 1}}},
                                    {.title = "T", .y_low = 0, .y_high = 1});
  // From the lower left corner of the plot to the upper right one.
  EXPECT_NE(svg.find("d=\"M68.0 218.0L508.0 12.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("aria-label=\"T\""), std::string::npos);
  EXPECT_NE(svg.find("a: 1 at 10"), std::string::npos);
}

TEST(LineChart, LeavesOutWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::string svg =
      LineChart({{.name = "a", .x = {1, 2, 3, 4}, .y = {1, std::nan(""), inf, 2}},
                 {.name = "b", .x = {}, .y = {}}},
                {.title = "T"});
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  EXPECT_EQ(Count(svg, "<circle"), 2u);
  EXPECT_NE(svg.find(">b</text>"), std::string::npos);
  for (const std::vector<double>& y : {std::vector<double>{}, {5.0}, {std::nan("")}}) {
    const Series one{.name = "a", .x = std::vector<double>(y.size(), 1), .y = y};
    EXPECT_EQ(LineChart({one}, {.title = "T"}).find("nan"), std::string::npos);
  }
}

TEST(BarChart, DrawsABarForEachNameAndSeries) {
  const std::string svg = BarChart(
      {"x<y", "z"}, {{.name = "p", .x = {}, .y = {0.5, 1}}, {.name = "r", .x = {}, .y = {0.25}}},
      {.title = "T", .y_high = 1});
  EXPECT_EQ(Count(svg, "<rect"), 5u);  // three bars and two of the legend
  EXPECT_NE(svg.find("x&lt;y, p: 0.5"), std::string::npos) << svg;
  EXPECT_NE(svg.find("height=\"94.0\""), std::string::npos) << svg;  // half of 188
}

TEST(EscapeHtml, ReplacesWhatIsNoText) {
  EXPECT_EQ(EscapeHtml("a<b>&\"c'\x01\n"), "a&lt;b&gt;&amp;&quot;c&#39; \n");
}

TEST(StandaloneSvg, HoldsItsStyle) {
  const std::string svg =
      StandaloneSvg(LineChart({{.name = "a", .x = {1}, .y = {2}}}, {.title = "T"}));
  EXPECT_TRUE(std::regex_search(svg, std::regex("^<svg [^>]*><style>"))) << svg.substr(0, 300);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

ReportContents SomeContents() {
  ReportContents contents{
      .title = "model <b> on data", .status = "It has ended.", .command = "run 'a b'"};
  contents.facts = {{"seed", "42 & more"}};
  for (int step = 1; step <= 4; ++step) {
    contents.log_history.push_back(
        {{"step", step}, {"loss", 1.0 / step}, {"learning_rate", 1e-5}, {"grad_norm", 2.0}});
  }
  contents.log_history.push_back({{"step", 4},
                                  {"eval_loss", 0.625},
                                  {"eval_accuracy", 0.75},
                                  {"eval_mse", 7.5},
                                  {"eval_runtime", 1.0}});
  contents.resources = {{.step = 0, .seconds = 0, .tokens = 0, .resident_bytes = 5'000'000},
                        {.step = 4, .seconds = 2, .tokens = 300, .resident_bytes = 6'000'000}};
  contents.lengths = {0, 0, 3, 1};
  return contents;
}

TEST(MakeFigures, HoldTheLoggedNumbers) {
  const std::vector<Figure> figures = MakeFigures(SomeContents());
  std::vector<std::string> names;
  for (const Figure& figure : figures) names.push_back(figure.name);
  EXPECT_EQ(names, (std::vector<std::string>{"loss", "metrics", "other_metrics", "learning_rate",
                                             "grad_norm", "throughput", "memory", "lengths"}));
  ASSERT_EQ(figures[0].series.size(), 2u);
  EXPECT_EQ(figures[0].series[0].y, (std::vector<double>{1, 0.5, 1.0 / 3, 0.25}));
  EXPECT_EQ(figures[0].series[1].x, (std::vector<double>{4}));
  EXPECT_EQ(figures[1].series[0].name, "accuracy");
  EXPECT_EQ(figures[2].series[0].name, "mse");
  EXPECT_EQ(figures[5].series[0].y, (std::vector<double>{150}));
  EXPECT_EQ(figures[7].series[0].y, (std::vector<double>{0, 0, 3, 1}));
}

TEST(MakeFigures, NeedNumbers) {
  EXPECT_TRUE(MakeFigures({.title = "T", .status = "S", .command = ""}).empty());
}

Json SomeEvaluation(size_t num_classes) {
  Json report = {{"classes", Json::array()},
                 {"calibration_bins",
                  {{{"confidence", nullptr}, {"accuracy", nullptr}},
                   {{"confidence", 0.75}, {"accuracy", 0.5}},
                   {{"confidence", 1.0}, {"accuracy", 1.0}}}}};
  std::vector<std::vector<int64_t>> matrix(num_classes, std::vector<int64_t>(num_classes));
  for (size_t c = 0; c < num_classes; ++c) {
    report["classes"].push_back({{"label", "<" + std::to_string(c) + ">"},
                                 {"precision", 0.5},
                                 {"recall", nullptr},
                                 {"f1", 0.25},
                                 {"support", c}});
    matrix[c][c] = 3;
    matrix[c][0] += static_cast<int64_t>(c);
  }
  report["confusion_matrix"] = matrix;
  return report;
}

TEST(EvaluationFigures, ShowClassesAndCalibration) {
  const std::vector<Figure> figures = EvaluationFigures(SomeEvaluation(3));
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].row_names, (std::vector<std::string>{"<0>", "<1>", "<2>"}));
  EXPECT_EQ(figures[0].series[0].y, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(Count(figures[0].svg, "<rect"), 9u);  // no bars for the recall; three of the legend
  EXPECT_EQ(figures[1].series[0].x, (std::vector<double>{0.75, 1}));
  EXPECT_NE(figures[1].svg.find("class=\"reference\""), std::string::npos);
  EXPECT_TRUE(EvaluationFigures(Json::object()).empty());
}

TEST(EvaluationFigures, ShowTheMostFrequentOfManyClasses) {
  const std::vector<Figure> figures = EvaluationFigures(SomeEvaluation(40));
  ASSERT_EQ(figures[0].row_names.size(), 30u);
  EXPECT_EQ(figures[0].row_names[0], "<10>");
}

TEST(ConfusionTable, IsAMatrixOrAListOfPairs) {
  const std::string matrix = ConfusionTable(SomeEvaluation(3));
  EXPECT_NE(matrix.find("<th scope=\"row\">&lt;1&gt;</th><td class=\"wrong\" "
                        "style=\"--share:0.250\">1</td><td class=\"right\" "
                        "style=\"--share:0.750\">3</td>"),
            std::string::npos)
      << matrix;
  const std::string pairs = ConfusionTable(SomeEvaluation(40));
  EXPECT_NE(pairs.find("<tbody><tr><th scope=\"row\">&lt;39&gt;</th><td>&lt;0&gt;</td>"
                       "<td>39</td></tr>"),
            std::string::npos)
      << pairs;
  const Json cells = {{"confusion_cells",
                       {{{"label", "a"}, {"prediction", "a"}, {"count", 9}},
                        {{"label", "a"}, {"prediction", "b"}, {"count", 2}}}}};
  EXPECT_NE(ConfusionTable(cells).find("<td>b</td><td>2</td>"), std::string::npos);
  EXPECT_EQ(ConfusionTable(cells).find("<td>9</td>"), std::string::npos);
  EXPECT_EQ(ConfusionTable(Json::object()), "");
}

TEST(ReportPage, HoldsAllAndNeedsNoNetwork) {
  ReportContents contents = SomeContents();
  const std::string page = ReportPage(contents, MakeFigures(contents));
  EXPECT_NE(page.find("model &lt;b&gt; on data"), std::string::npos);
  EXPECT_NE(page.find("42 &amp; more"), std::string::npos);
  EXPECT_NE(page.find("run &#39;a b&#39;"), std::string::npos);
  EXPECT_EQ(Count(page, "<figure "), 8u);
  EXPECT_NE(page.find("<th scope=\"row\">3</th><td>0.333333</td>"), std::string::npos);
  EXPECT_EQ(page.find("http-equiv"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(Count(page, "http"), Count(page, "xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(page.find("id=\"errors\""), std::string::npos);
  contents.evaluation = SomeEvaluation(3);
  contents.errors = "line\ttext\n7\ta <b> c\n";
  const std::string evaluated = ReportPage(contents, MakeFigures(contents));
  EXPECT_EQ(Count(evaluated, "<figure "), 10u);
  EXPECT_NE(evaluated.find("id=\"confusion\""), std::string::npos);
  EXPECT_NE(evaluated.find("<tr><td>7</td><td>a &lt;b&gt; c</td></tr>"), std::string::npos);
  contents.running = true;
  EXPECT_NE(ReportPage(contents, {}).find("http-equiv=\"refresh\""), std::string::npos);
}

}  // namespace
}  // namespace lathe
