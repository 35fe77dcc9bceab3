// Draws figures as SVG: curves and bars, with axes and a legend.
//
//   std::string svg = LineChart({{.name = "train", .x = steps, .y = losses}},
//                               {.title = "Loss", .x_label = "step"});
//
// A figure takes its colours from classes: s0, s1, ... for series, and axis, grid and text for the
// rest. ChartStyle has them for light and dark themes. Series differ in their dashes, too, so that
// colour alone tells nothing. All functions are pure; numbers that are not finite are left out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Series of a figure that look different. Further ones look like the first ones again.
inline constexpr size_t kNumStyles = 8;

struct Series {
  std::string name;
  std::vector<double> x, y;  // the same length, x in increasing order
};

struct ChartOptions {
  std::string title;  // a screen reader reads it, and then the outermost values
  std::string x_label = {}, y_label = {};
  std::optional<double> x_low = {}, x_high = {};  // else those of the values; not for BarChart
  std::optional<double> y_low = {}, y_high = {};
  bool diagonal = false;  // draws the line y = x for comparison
  // Draws steps: the y of a point holds from the x of the point before it.
  bool steps = false;
};

// Returns curves over one pair of axes. The legend stands above the plot, which keeps its height. A
// longer series is drawn as the means of neighbours (Thinned). Series without a point appear in the
// legend only, which cuts long names.
std::string LineChart(const std::vector<Series>& series, const ChartOptions& options);

// Returns a bar of height y[i] for each name, beside those of the other series. The bars begin at 0
// and are not negative; x is not used. Names stand below the bars if there are few.
std::string BarChart(const std::vector<std::string>& names, const std::vector<Series>& series,
                     const ChartOptions& options);

// Returns a row of horizontal bars for each name, a bar for each series, from 0 to options.x_high
// (1 if it isn't given). The figure is as high as its rows need. Long names are cut. A value that
// is not finite has the word "undefined" in place of its bar.
std::string ClassBars(const std::vector<std::string>& names, const std::vector<Series>& series,
                      const ChartOptions& options);

// Returns at most `most` points, each the mean of as many neighbours as the others.
Series Thinned(const Series& series, size_t most);

// Returns values at round distances, at most `most` + 1 of them, inside [low, high]. There are none
// unless low < high.
std::vector<double> RoundTicks(double low, double high, int most);

// Returns the rules of CSS for the classes of figures.
std::string_view ChartStyle();

// Returns the contents of an .svg file for a figure: the same, with ChartStyle in it.
std::string StandaloneSvg(const std::string& svg);

// Returns the text with the characters replaced that HTML and SVG would not take as they are.
std::string EscapeHtml(std::string_view text);

}  // namespace lathe
