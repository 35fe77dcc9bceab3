#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "lathe/train/report/confusion.h"
#include "lathe/train/report/evaluation_figures.h"
#include "lathe/train/report/headings.h"
#include "lathe/train/report/report_page.h"
#include "lathe/train/report/step_samples.h"

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

TEST(StepSamples, KeepMeansOfEquallyMany) {
  StepSamples samples;
  EXPECT_TRUE(samples.Points("a").x.empty());
  for (int64_t step = 1; step <= 400; ++step) samples.Add(step, static_cast<double>(step % 2));
  EXPECT_EQ(samples.Points("a").x.size(), 400u);
  samples.Add(400, 7);             // the same step again
  samples.Add(401, std::nan(""));  // a step that was skipped
  for (int64_t step = 402; step <= 404; ++step) samples.Add(step, 3);
  const Series points = samples.Points("a");
  EXPECT_EQ(points.name, "a");
  ASSERT_EQ(points.x.size(), 202u);
  EXPECT_EQ(points.x[0], 1.5);
  EXPECT_EQ(points.y[0], 0.5);
  EXPECT_EQ(points.x[200], 402.5);
  EXPECT_EQ(points.x[201], 404);
  EXPECT_EQ(points.y[201], 3);
  for (int64_t step = 405; step <= 100'000; ++step) samples.Add(step, 3);
  EXPECT_LE(samples.Points("a").x.size(), 400u);
  EXPECT_GT(samples.Points("a").x.size(), 200u);
}

TEST(LineChart, PlacesPointsByTheirValues) {
  const std::string svg = LineChart({{.name = "a", .x = {0, 10}, .y = {0, 1}}},
                                    {.title = "T", .y_low = 0, .y_high = 1});
  // From the lower left corner of the plot to the upper right one.
  EXPECT_NE(svg.find("d=\"M68.0 218.0L508.0 12.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("aria-label=\"T. a last 1, lowest 0, highest 1.\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("a: 1 at 10"), std::string::npos);
}

TEST(LineChart, DrawsSteps) {
  const std::string svg = LineChart({{.name = "a", .x = {0, 0.5, 1}, .y = {1, 0.5, 0}}},
                                    {.title = "T", .y_low = 0, .y_high = 1, .steps = true});
  // Down first, then to the right.
  EXPECT_NE(svg.find("d=\"M68.0 12.0V115.0H288.0V218.0H508.0\""), std::string::npos) << svg;
}

TEST(LineChart, CutsLongNamesInTheLegend) {
  std::string name;
  for (int i = 0; i < 60; ++i) name += "é";
  const std::string svg = LineChart(
      {{.name = name, .x = {}, .y = {}}, {.name = "b", .x = {}, .y = {}}}, {.title = "T"});
  // The beginning and the end, and the whole name for a pointer.
  EXPECT_NE(svg.find(">" + name.substr(0, 50) + "…" + name.substr(0, 48) + "<title>" + name +
                     "</title></text>"),
            std::string::npos)
      << svg;
}

TEST(LineChart, KeepsThePlotBelowALongLegend) {
  std::vector<Series> series;
  for (int i = 0; i < 8; ++i) {
    series.push_back(
        {.name = "a rather long name of a class, " + std::to_string(i), .x = {0, 1}, .y = {0, 1}});
  }
  const std::string svg = LineChart(series, {.title = "T", .y_low = 0, .y_high = 1});
  // Eight rows of 18 above the plot, which is 206 high.
  EXPECT_NE(svg.find("d=\"M68.0 362.0L508.0 156.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("viewBox=\"0 0 520 404\""), std::string::npos) << svg;
}

TEST(LineChart, WritesLargeNumbersShort) {
  const std::string svg = LineChart({{.name = "a", .x = {0, 1}, .y = {0, 150'000}}},
                                    {.title = "T", .y_label = "tokens a second"});
  EXPECT_NE(svg.find(">150k</text>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("e+05</text>"), std::string::npos) << svg;
}

TEST(LineChart, LeavesRoomForNumbersBesideTheLabel) {
  const Series series{.name = "a", .x = {0, 1}, .y = {1.0001e-5, 1.0002e-5}};
  const std::string svg = LineChart({series}, {.title = "T", .y_label = "rate"});
  std::smatch number;
  const std::regex regex("<text x=\"([0-9.]+)\" y=\"[0-9.]+\" text-anchor=\"end\">(1[^<]*)</text>");
  ASSERT_TRUE(std::regex_search(svg, number, regex)) << svg;
  const double width = 7.5 * static_cast<double>(number[2].length());
  EXPECT_GE(std::stod(number[1]) - width, 16) << number[2];  // the label ends at 12
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
  EXPECT_NE(svg.find("height=\"103.0\""), std::string::npos) << svg;  // half of 206
}

// A text of a figure, as the rectangle that it needs.
struct TextBox {
  std::string text;
  double left, right, top, bottom;
};

// Returns the texts that are not turned.
std::vector<TextBox> TextBoxes(const std::string& svg) {
  const std::regex regex(
      "<text( class=\"undefined\")? x=\"([0-9.]+)\" y=\"([0-9.]+)\"(?: text-anchor=\"([a-z]+)\")?>"
      "([^<]*)");
  std::vector<TextBox> boxes;
  for (std::sregex_iterator it(svg.begin(), svg.end(), regex), end; it != end; ++it) {
    const std::smatch& match = *it;
    const double size = match[1].matched ? 10 : 13;
    const double x = std::stod(match[2]), y = std::stod(match[3]);
    const std::string anchor = match[4].matched ? match[4].str() : "start", text = match[5];
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    const double width = size * 0.55 * static_cast<double>(characters);
    const double left = anchor == "end" ? x - width : anchor == "middle" ? x - width / 2 : x;
    boxes.push_back({text, left, left + width, y - size * 0.8, y + size * 0.2});
  }
  return boxes;
}

TEST(ClassBars, KeepNamesApart) {
  for (const size_t classes : {2, 12, 40}) {
    std::vector<std::string> names;
    std::vector<Series> series = {{.name = "precision", .x = {}, .y = {}},
                                  {.name = "recall", .x = {}, .y = {}},
                                  {.name = "f1", .x = {}, .y = {}}};
    for (size_t c = 0; c < classes; ++c) {
      names.push_back("a_rather_long_name_of_class_number_" + std::to_string(c));
      for (Series& one : series) one.y.push_back(c % 2 == 0 ? 0.5 : std::nan(""));
    }
    const std::string svg = ClassBars(names, series, {.title = "T", .x_high = 1});
    std::smatch size;
    ASSERT_TRUE(std::regex_search(svg, size, std::regex("viewBox=\"0 0 520 ([0-9.]+)\"")));
    const std::vector<TextBox> boxes = TextBoxes(svg);
    // The legend, the numbers 0, 0.2, ... 1, the names, and three words for each second class.
    ASSERT_EQ(boxes.size(), 3 + 6 + classes + 3 * (classes / 2)) << svg;
    for (size_t a = 0; a < boxes.size(); ++a) {
      EXPECT_GE(boxes[a].left, 0) << boxes[a].text;
      EXPECT_LE(boxes[a].right, 520) << boxes[a].text;
      EXPECT_LE(boxes[a].bottom, std::stod(size[1])) << boxes[a].text;
      for (size_t b = 0; b < a; ++b) {
        const bool apart = boxes[a].left >= boxes[b].right || boxes[b].left >= boxes[a].right ||
                           boxes[a].top >= boxes[b].bottom || boxes[b].top >= boxes[a].bottom;
        EXPECT_TRUE(apart) << boxes[a].text << " and " << boxes[b].text;
      }
    }
    EXPECT_EQ(Count(svg, "<title>" + names.back() + "</title></text>"), 1u) << svg;
  }
}

TEST(ClassBars, TellUndefinedFromZero) {
  const std::string svg =
      ClassBars({"a", "b"}, {{.name = "f1", .x = {}, .y = {0, std::nan("")}}}, {.title = "T"});
  EXPECT_EQ(Count(svg, "<rect"), 1u);
  EXPECT_NE(svg.find("<title>a, f1: 0</title>"), std::string::npos) << svg;
  EXPECT_EQ(Count(svg, ">undefined f1</text>"), 1u) << svg;
  EXPECT_NE(svg.find("T. f1 lowest 0 (a), highest 0 (a), 1 undefined."), std::string::npos) << svg;
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

TEST(MakeFigures, PreferTheirOwnCurvesToTheLog) {
  ReportContents contents = SomeContents();
  contents.losses = {.name = "training", .x = {3, 3.5, 4}, .y = {0.3, 0.2, 0.1}};
  const std::vector<Figure> figures = MakeFigures(contents);
  // Steps 1 and 2 were another process's.
  EXPECT_EQ(figures[0].series[0].x, (std::vector<double>{1, 2, 3, 3.5, 4}));
  EXPECT_EQ(figures[0].series[0].y, (std::vector<double>{1, 0.5, 0.3, 0.2, 0.1}));
  EXPECT_EQ(figures[3].series[0].x, (std::vector<double>{1, 2, 3, 4}));
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
  EXPECT_EQ(Count(figures[0].svg, ">undefined recall</text>"), 3u);
  EXPECT_TRUE(figures[0].note.starts_with("A recall is undefined without samples"));
  EXPECT_EQ(figures[1].series[0].x, (std::vector<double>{0.75, 1}));
  EXPECT_NE(figures[1].svg.find("class=\"reference\""), std::string::npos);
  EXPECT_TRUE(EvaluationFigures(Json::object()).empty());
}

// Gives each class a curve, but for those without samples.
Json WithCurves(Json report) {
  for (Json& one : report["classes"]) {
    one["precision_recall_curve"] = Json{{"precision", {0.25, 0.5, 0.75, 1.0}},
                                         {"recall", {1.0, 1.0, 0.3, 0.0}},
                                         {"thresholds", {0.125, 0.5, 0.875}}};
    if (one["support"] == 0) one["precision_recall_curve"] = nullptr;
  }
  return report;
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

TEST(Heading, CutsLongNames) {
  EXPECT_EQ(Heading(HeadingOf::kColumn, "a<b"), "<th scope=\"col\">a&lt;b</th>");
  EXPECT_EQ(Heading(HeadingOf::kColumn, "matthews_correlation"),
            "<th scope=\"col\">matthews_correlation</th>");
  const std::string name = "complaints about \"fees\" and other charges of number 1";
  const std::string whole = "complaints about &quot;fees&quot; and other charges of number 1";
  const std::string html = Heading(HeadingOf::kRow, name);
  EXPECT_TRUE(html.starts_with("<th scope=\"row\" title=\"" + whole + "\" aria-label=\"" + whole +
                               "\">complaints "))
      << html;
  EXPECT_TRUE(html.ends_with(" number 1</th>")) << html;
  EXPECT_LT(html.size(), 2 * whole.size() + 80) << html;
}

TEST(ConfusionTable, IsAMatrixOrAListOfPairs) {
  const std::string matrix = ConfusionTable(SomeEvaluation(3)).html;
  EXPECT_NE(matrix.find("<th scope=\"row\">&lt;1&gt;</th><td class=\"wrong\" "
                        "style=\"--share:0.250\">1</td><td class=\"right\" "
                        "style=\"--share:0.750\">3</td>"),
            std::string::npos)
      << matrix;
  const std::string pairs = ConfusionTable(SomeEvaluation(40)).html;
  EXPECT_NE(pairs.find("<tbody><tr><th scope=\"row\">&lt;39&gt;</th><td>&lt;0&gt;</td>"
                       "<td class=\"number\">39</td></tr>"),
            std::string::npos)
      << pairs;
  const Json cells = {{"confusion_cells",
                       {{{"label", "a"}, {"prediction", "a"}, {"count", 9}},
                        {{"label", "a"}, {"prediction", "b"}, {"count", 2}}}}};
  EXPECT_NE(ConfusionTable(cells).html.find("<td>b</td><td class=\"number\">2</td>"),
            std::string::npos);
  EXPECT_EQ(ConfusionTable(cells).html.find(">9</td>"), std::string::npos);
  EXPECT_EQ(ConfusionTable(SomeEvaluation(3)).title, "Confusion matrix");
  EXPECT_EQ(ConfusionTable(cells).title, "Classes that are confused most often");
  EXPECT_EQ(ConfusionTable(Json::object()).html, "");
}

TEST(ConfusionTable, CountsAnswersOfSeveralLabels) {
  const Json report = {{"classes",
                        {{{"label", "a<b"},
                          {"confusion",
                           {{"true_positives", 1234},
                            {"false_positives", 2},
                            {"false_negatives", 3},
                            {"true_negatives", 4}}}}}}};
  const TitledTable table = ConfusionTable(report);
  EXPECT_EQ(table.title, "Right and wrong answers for each label");
  EXPECT_NE(table.html.find("<th scope=\"row\">a&lt;b</th><td>1,234</td><td>2</td><td>3</td>"
                            "<td>4</td></tr>"),
            std::string::npos)
      << table.html;
}

TEST(ConfusionSvg, HasACellForEachPair) {
  const std::string svg = ConfusionSvg(SomeEvaluation(3));
  EXPECT_EQ(Count(svg, "<rect"), 9u);
  EXPECT_EQ(Count(svg, "<rect class=\"s0\""), 3u);
  EXPECT_NE(svg.find("fill-opacity=\"0.375\""), std::string::npos) << svg;  // 3 of 4, halved
  EXPECT_EQ(Count(svg, "&lt;2&gt;"), 2u) << svg;
  EXPECT_NE(svg.find("Confusion matrix of 3 classes."), std::string::npos);
  EXPECT_EQ(Count(ConfusionSvg(SomeEvaluation(40)), "<rect"), 1600u);
  EXPECT_EQ(ConfusionSvg(SomeEvaluation(41)), "");
  EXPECT_EQ(ConfusionSvg(Json::object()), "");
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
  contents.evaluation = WithCurves(SomeEvaluation(3));
  contents.errors = "line\ttext\n7\ta <b> c\n";
  const std::string evaluated = ReportPage(contents, MakeFigures(contents));
  EXPECT_EQ(Count(evaluated, "<figure "), 11u);
  EXPECT_NE(evaluated.find("have no sample: &lt;0&gt;.</p>"), std::string::npos);
  EXPECT_NE(evaluated.find("<th scope=\"row\">0.3</th><td>0.75</td><td>0.75</td></tr>"),
            std::string::npos);
  EXPECT_NE(evaluated.find("id=\"confusion\""), std::string::npos);
  EXPECT_NE(evaluated.find("<td role=\"cell\" data-name=\"line\">7</td> <td role=\"cell\" "
                           "data-name=\"text\">a &lt;b&gt; c</td>"),
            std::string::npos);
  EXPECT_NE(evaluated.find("<td>0.5</td><td>undefined</td><td>0.25</td>"), std::string::npos);
  EXPECT_EQ(evaluated.find("No prediction"), std::string::npos);
  contents.errors = "line\ttext\n";
  EXPECT_NE(ReportPage(contents, MakeFigures(contents))
                .find("No prediction of the validation data is wrong."),
            std::string::npos);
  // Long texts end after 1,000 characters, and no character is cut in two.
  std::string text, begin;
  for (int i = 0; i < 1000; ++i) begin += i % 2 == 0 ? "\u00e9" : "\u4e2d";
  for (int i = 0; i < 1000; ++i) text += begin;
  for (const std::string& whole : {begin, begin + "x", text}) {
    contents.errors = "line\ttext\n7\t" + whole + "\n";
    const std::string cut = ReportPage(contents, MakeFigures(contents));
    EXPECT_EQ(Count(cut, ">" + begin + (whole == begin ? "" : "\u2026") + "</td>"), 1u);
  }
  // A keyboard stops at boxes with a name, and nowhere else.
  EXPECT_EQ(Count(evaluated, "tabindex"), 11u + 2);
  EXPECT_EQ(Count(evaluated, "role=\"region\" aria-label=\""), 11u + 2);
  EXPECT_EQ(evaluated.find("Written at"), std::string::npos);
  contents.running = true;
  contents.written = "2026-01-02 03:04:05 UTC";
  contents.seconds_between_writings = 12.5;
  const std::string running = ReportPage(contents, {});
  EXPECT_NE(running.find("<p>Written at <time id=\"written\" datetime=\"2026-01-02T03:04:05Z\" "
                         "data-limit=\"98\" data-reload=\"20\">2026-01-02 03:04:05 UTC</time>."),
            std::string::npos)
      << running;
  // The script loads the page again, and the browser itself does where scripts don't run.
  EXPECT_EQ(Count(running, "<noscript><meta http-equiv=\"refresh\" content=\"20\"></noscript>"),
            1u);
  EXPECT_EQ(Count(running, "http-equiv"), 1u);
  EXPECT_EQ(Count(running, "<script"), 1u);
  contents.running = false;
  const std::string ended = ReportPage(contents, {});
  EXPECT_NE(ended.find("<p>Written at 2026-01-02 03:04:05 UTC.</p>"), std::string::npos);
  EXPECT_EQ(Count(ended, "<script"), 0u);
}

}  // namespace
}  // namespace lathe
