#include "lathe/train/report/confusion.h"

#include <gtest/gtest.h>

#include <string>

#include "lathe/train/report/headings.h"
#include "lathe/train/report/report_testing.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

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

}  // namespace
}  // namespace lathe
