#include "lathe/train/report/report_page.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/train/report/report_testing.h"

namespace lathe {
namespace {

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
