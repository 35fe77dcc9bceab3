#include <algorithm>
#include <cmath>

#include "lathe/train/report/chart.h"
#include "lathe/train/report/chart_parts.h"

namespace lathe {
namespace {

constexpr double kBar = 12, kGapOfRows = 10;
constexpr double kMostNameWidth = 180, kBelow = 24;

// Returns, for a screen reader, the ends of each series and how many of its values are undefined.
std::string Summary(const std::vector<std::string>& names, const std::vector<Series>& series) {
  std::string text;
  for (const Series& one : series) {
    size_t low = 0, high = 0, undefined = 0, defined = 0;
    for (size_t i = 0; i < one.y.size() && i < names.size(); ++i) {
      if (!std::isfinite(one.y[i])) {
        ++undefined;
        continue;
      }
      if (defined++ == 0) low = high = i;
      if (one.y[i] < one.y[low]) low = i;
      if (one.y[i] > one.y[high]) high = i;
    }
    text += (text.empty() ? " " : "; ") + one.name;
    if (defined > 0) {
      text += " lowest " + Label(one.y[low]) + " (" + names[low] + "), highest " +
              Label(one.y[high]) + " (" + names[high] + ")";
    }
    if (undefined > 0)
      text += (defined > 0 ? ", " : " ") + std::to_string(undefined) + " undefined";
  }
  return text.empty() ? "" : text + ".";
}

std::string Bar(const std::string& style, double x, double y, double width,
                const std::string& title) {
  return "<rect class=\"" + style + "\" x=\"" + Place(x) + "\" y=\"" + Place(y) + "\" width=\"" +
         Place(width) + "\" height=\"" + Place(kBar - 2) + "\"><title>" + EscapeHtml(title) +
         "</title></rect>";
}

}  // namespace

std::string ClassBars(const std::vector<std::string>& names, const std::vector<Series>& series,
                      const ChartOptions& options) {
  double widest = 40;
  for (const std::string& name : names) widest = std::max(widest, TextWidth(name));
  const double left = std::min(widest, kMostNameWidth) + 12;
  const Legend legend = MakeLegend(series, left, /*bars=*/true);
  const double row = kBar * static_cast<double>(std::max<size_t>(1, series.size())) + kGapOfRows;
  const double bottom = legend.height + row * static_cast<double>(names.size());
  const double most = options.x_high.value_or(1);
  const Axis x(0, most, left, kChartWidth - kChartRight - 6);
  std::string svg =
      SvgOpening(kChartWidth, bottom + kBelow, options.title + "." + Summary(names, series)) +
      legend.svg;
  for (const double tick : RoundTicks(0, most, 5)) {
    svg += SvgLine("grid", x.At(tick), legend.height, x.At(tick), bottom) +
           SvgText(x.At(tick), bottom + 16, "middle", TickLabel(tick));
  }
  svg += SvgLine("axis", left, legend.height, left, bottom);
  for (size_t i = 0; i < names.size(); ++i) {
    const double top = legend.height + row * static_cast<double>(i) + kGapOfRows / 2;
    const double middle = top + (row - kGapOfRows) / 2;
    svg += SvgText(left - 8, middle + 4, "end", names[i], kMostNameWidth);
    for (size_t s = 0; s < series.size(); ++s) {
      if (i >= series[s].y.size()) continue;
      const double y = top + kBar * static_cast<double>(s), value = series[s].y[i];
      if (std::isfinite(value)) {
        svg += Bar(StyleOf(s), left, y, x.At(std::clamp(value, 0.0, most)) - left,
                   names[i] + ", " + series[s].name + ": " + Label(value));
      } else {
        svg += "<text class=\"undefined\" x=\"" + Place(left + 4) + "\" y=\"" +
               Place(y + kBar - 3) + "\">undefined " + EscapeHtml(series[s].name) + "</text>";
      }
    }
  }
  return svg + "</svg>";
}

}  // namespace lathe
