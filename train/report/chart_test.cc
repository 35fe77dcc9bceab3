#include "lathe/train/report/chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "lathe/train/report/report_testing.h"

namespace lathe {
namespace {

TEST(RoundTicks, LieInsideAtRoundDistances) {
  EXPECT_EQ(RoundTicks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(RoundTicks(3, 97, 4), (std::vector<double>{50}));
  EXPECT_EQ(RoundTicks(-2, 2, 4), (std::vector<double>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(RoundTicks(1, 1, 4), std::vector<double>());
  EXPECT_EQ(RoundTicks(0, std::nan(""), 4), std::vector<double>());
  EXPECT_EQ(RoundTicks(-std::numeric_limits<double>::infinity(), 1, 4), std::vector<double>());
  // A perfect accuracy beside a correlation that rounding leaves below 1.
  EXPECT_EQ(RoundTicks(1 - 1.1e-16, 1, 5), std::vector<double>());
  EXPECT_EQ(RoundTicks(3e20, 3e20 + 65536, 5), std::vector<double>());
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

}  // namespace
}  // namespace lathe
