// What figures are made of: texts, lines, legends and scales in SVG. Only the sources that draw
// figures include this; chart.h is for those that want one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/train/report/chart.h"

namespace lathe {

// All lengths are in the units of a figure's viewBox, which are pixels at its own size.
inline constexpr double kChartWidth = 520, kChartRight = 12;
inline constexpr double kNoLegend = 12;  // above a plot without a legend

// A scale from values to places in the figure.
class Axis {
 public:
  Axis(double low, double high, double begin, double end)
      : low_(low), high_(high), begin_(begin), end_(end) {}
  double At(double value) const {
    return begin_ + (value - low_) / (high_ - low_) * (end_ - begin_);
  }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_, begin_, end_;
};

// Rows above the plot. A single series needs no legend: the title says what it is.
struct Legend {
  std::string svg;
  double height = kNoLegend;  // the plot begins below it
};
// `left` is where the rows begin. `bars` chooses squares instead of lines.
Legend MakeLegend(const std::vector<Series>& series, double left, bool bars);

// Returns a coordinate, a value of a point, and a value beside an axis: "150k" for 150,000.
std::string Place(double value);
std::string Label(double value);
std::string TickLabel(double value);
// Returns the class of the i-th series.
std::string StyleOf(size_t i);

// Returns about how wide the text is, rather too much than too little.
double TextWidth(std::string_view utf8);
// Returns the text, or as much of its beginning and its end as fits into the width, with "…"
// between them. Names of classes often differ in their ends only.
std::string CutToWidth(const std::string& text, double width);

// Returns a text; `anchor` is start, middle or end. A text that is wider than `width` is cut, and
// the whole of it is shown by a pointer that rests on it.
std::string SvgText(double x, double y, const std::string& anchor, const std::string& text);
std::string SvgText(double x, double y, const std::string& anchor, const std::string& text,
                    double width);
std::string SvgLine(const std::string& style, double x1, double y1, double x2, double y2);
// Returns the tag that opens a figure of this height. A screen reader reads `label`.
std::string SvgOpening(double width, double height, const std::string& label);

}  // namespace lathe
