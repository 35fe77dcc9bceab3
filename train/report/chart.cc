#include "lathe/train/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr double kWidth = 520, kHeight = 260;
constexpr double kLeft = 68, kRight = 12, kBottom = 42;  // beside and below the plot
constexpr double kNoLegend = 12, kLegendRow = 18;        // above it
constexpr size_t kMostPoints = 400;                      // of a curve
constexpr size_t kMostMarkers = 40;                      // points that are also drawn as dots
constexpr size_t kMostBarNames = 12;                     // that fit below the bars
constexpr size_t kMostCharacters = 50;                   // of a name in the legend

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

// The smallest range that holds what it was given.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Returns a range with an inside, and a margin of the share `margin` on both sides.
  Range Widened(double margin) const {
    if (!(low <= high)) return {0, 1};
    const double width = high > low ? (high - low) * margin : std::max(std::abs(high) * 0.1, 1e-9);
    return {low - width, high + width};
  }
};

std::string Place(double value) { return FormatNumber("%.1f", value); }
std::string Label(double value) { return FormatNumber("%.5g", value == 0 ? 0 : value); }
std::string StyleOf(size_t i) { return "s" + std::to_string(i % kNumStyles); }

std::string Text(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + Place(x) + "\" y=\"" + Place(y) + "\" text-anchor=\"" + anchor + "\">" +
         EscapeHtml(text) + "</text>";
}

std::string Line(const std::string& style, double x1, double y1, double x2, double y2) {
  return "<path class=\"" + style + "\" d=\"M" + Place(x1) + " " + Place(y1) + "L" + Place(x2) +
         " " + Place(y2) + "\"/>";
}

std::string Opening(const ChartOptions& options) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 " +
         Label(kWidth) + " " + Label(kHeight) + "\" role=\"img\" aria-label=\"" +
         EscapeHtml(options.title) + "\">";
}

std::string YAxis(const Axis& y, double top, const ChartOptions& options) {
  std::string svg;
  for (const double tick : RoundTicks(y.low(), y.high(), 5)) {
    svg += Line("grid", kLeft, y.At(tick), kWidth - kRight, y.At(tick)) +
           Text(kLeft - 6, y.At(tick) + 4, "end", Label(tick));
  }
  svg += Line("axis", kLeft, top, kLeft, kHeight - kBottom) +
         Line("axis", kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom);
  if (!options.y_label.empty()) {
    const std::string middle = Place((top + kHeight - kBottom) / 2);
    svg += "<text transform=\"translate(12 " + middle + ") rotate(-90)\" text-anchor=\"middle\">" +
           EscapeHtml(options.y_label) + "</text>";
  }
  return svg;
}

std::string XLabel(const ChartOptions& options) {
  return options.x_label.empty()
             ? ""
             : Text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", options.x_label);
}

bool BeginsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

size_t CountCharacters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), BeginsCharacter));
}

// Returns the name, or as much of it as fits into the legend and "…".
std::string NameInLegend(const std::string& name) {
  if (CountCharacters(name) <= kMostCharacters) return name;
  size_t end = 0, characters = 0;
  for (; end < name.size(); ++end) {
    if (BeginsCharacter(name[end]) && ++characters == kMostCharacters) break;
  }
  return name.substr(0, end) + "…";
}

// Rows above the plot. A single series needs no legend: the title says what it is.
struct Legend {
  std::string svg;
  double height = kNoLegend;  // the plot begins below it
};

Legend MakeLegend(const std::vector<Series>& series, bool bars) {
  Legend legend;
  if (series.size() < 2) return legend;
  constexpr double kCharacter = 7.5, kMark = 26, kGap = 16;
  double at = kLeft, row = 0;
  for (size_t i = 0; i < series.size(); ++i) {
    const std::string name = NameInLegend(series[i].name);
    const double width = kMark + kCharacter * static_cast<double>(CountCharacters(name));
    if (at > kLeft && at + width > kWidth - kRight) {
      at = kLeft;
      ++row;
    }
    const double y = 14 + kLegendRow * row;
    legend.svg += bars ? "<rect class=\"" + StyleOf(i) + "\" x=\"" + Place(at + 6) + "\" y=\"" +
                             Place(y - 6) + "\" width=\"12\" height=\"12\"/>"
                       : Line(StyleOf(i), at, y, at + kMark - 4, y);
    legend.svg += Text(at + kMark, y + 4, "start", name);
    at += width + kGap;
  }
  legend.height += kLegendRow * (row + 1);
  return legend;
}

std::string Curve(const Series& series, const Axis& x, const Axis& y, const std::string& style,
                  bool steps) {
  std::string path, dots;
  bool pen_is_down = false;
  const bool marked = series.x.size() <= kMostMarkers;
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) {
      pen_is_down = false;
      continue;
    }
    const std::string px = Place(x.At(series.x[i])), py = Place(y.At(series.y[i]));
    path += pen_is_down && steps ? "V" + py + "H" + px : (pen_is_down ? "L" : "M") + px + " " + py;
    pen_is_down = true;
    if (!marked) continue;
    dots += "<circle class=\"" + style + "\" cx=\"" + px + "\" cy=\"" + py + "\" r=\"3\"><title>" +
            EscapeHtml(series.name + ": " + Label(series.y[i]) + " at " + Label(series.x[i])) +
            "</title></circle>";
  }
  return path.empty() ? "" : "<path class=\"" + style + "\" d=\"" + path + "\"/>" + dots;
}

}  // namespace

std::string LineChart(const std::vector<Series>& series, const ChartOptions& options) {
  std::vector<Series> drawn;
  Range xs, ys;
  for (const Series& one : series) {
    drawn.push_back(Thinned(one, kMostPoints));
    for (const double x : drawn.back().x) xs.Add(x);
    for (const double y : drawn.back().y) ys.Add(y);
  }
  const Range wide = ys.Widened(0.05), across = xs.low < xs.high ? xs : xs.Widened(0);
  const Axis x(options.x_low.value_or(across.low), options.x_high.value_or(across.high), kLeft,
               kWidth - kRight);
  const Legend legend = MakeLegend(series, /*bars=*/false);
  const Axis y(options.y_low.value_or(wide.low), options.y_high.value_or(wide.high),
               kHeight - kBottom, legend.height);
  std::string svg = Opening(options) + YAxis(y, legend.height, options);
  for (const double tick : RoundTicks(x.low(), x.high(), 6))
    svg += Text(x.At(tick), kHeight - kBottom + 16, "middle", Label(tick));
  svg += XLabel(options) + legend.svg;
  if (options.diagonal) {
    const double low = std::max(x.low(), y.low()), high = std::min(x.high(), y.high());
    svg += Line("reference", x.At(low), y.At(low), x.At(high), y.At(high));
  }
  for (size_t i = 0; i < drawn.size(); ++i) svg += Curve(drawn[i], x, y, StyleOf(i), options.steps);
  return svg + "</svg>";
}

std::string BarChart(const std::vector<std::string>& names, const std::vector<Series>& series,
                     const ChartOptions& options) {
  Range ys;
  ys.Add(0);
  for (const Series& one : series) {
    for (const double y : one.y) ys.Add(y);
  }
  const double high = options.y_high.value_or(ys.high > 0 ? ys.high * 1.05 : 1);
  const Legend legend = MakeLegend(series, /*bars=*/true);
  const Axis y(0, high, kHeight - kBottom, legend.height);
  std::string svg =
      Opening(options) + YAxis(y, legend.height, options) + XLabel(options) + legend.svg;
  const double slot = (kWidth - kLeft - kRight) / std::max(1.0, static_cast<double>(names.size()));
  const double bar = slot * 0.8 / std::max(1.0, static_cast<double>(series.size()));
  // So many slots lie between two names that the names don't meet.
  const size_t stride = (names.size() + kMostBarNames - 1) / kMostBarNames;
  for (size_t i = 0; i < names.size(); ++i) {
    const double left = kLeft + slot * (static_cast<double>(i) + 0.1);
    for (size_t s = 0; s < series.size(); ++s) {
      if (i >= series[s].y.size() || !std::isfinite(series[s].y[i])) continue;
      const double top = y.At(std::clamp(series[s].y[i], 0.0, high));
      svg += "<rect class=\"" + StyleOf(s) + "\" x=\"" +
             Place(left + bar * static_cast<double>(s)) + "\" y=\"" + Place(top) + "\" width=\"" +
             Place(bar) + "\" height=\"" + Place(kHeight - kBottom - top) + "\"><title>" +
             EscapeHtml(names[i] + ", " + series[s].name + ": " + Label(series[s].y[i])) +
             "</title></rect>";
    }
    if (i % stride == 0) svg += Text(left + slot * 0.4, kHeight - kBottom + 16, "middle", names[i]);
  }
  return svg + "</svg>";
}

Series Thinned(const Series& series, size_t most) {
  if (series.x.size() <= most) return series;
  Series thin{.name = series.name, .x = {}, .y = {}};
  const size_t stride = (series.x.size() + most - 1) / most;
  for (size_t begin = 0; begin < series.x.size(); begin += stride) {
    const size_t end = std::min(begin + stride, series.x.size());
    double x = 0, y = 0, count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
      x += series.x[i];
      y += series.y[i];
      ++count;
    }
    if (count == 0) continue;
    thin.x.push_back(x / count);
    thin.y.push_back(y / count);
  }
  return thin;
}

std::vector<double> RoundTicks(double low, double high, int most) {
  if (!(low < high) || most < 1) return {};
  const double least = (high - low) / most;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= least * (1 - 1e-9)) step = factor * power;
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (double i = first; i * step <= high + step * 1e-9; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string_view ChartStyle() {
  return R"(.chart{--s0:#0064a4;--s1:#c04a00;--s2:#00785a;--s3:#a0437d;--s4:#6a5300;--s5:#5b4bb5;--s6:#8f1d1d;--s7:#4d5a66;--line:#c9ced6;color:#1c2530;
font:13px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.chart{--s0:#6fb7f2;--s1:#ff9a5c;--s2:#4fd1a5;--s3:#e79ac8;--s4:#e3c65a;--s5:#b3a6ff;--s6:#ff8a8a;--s7:#b9c6d2;--line:#3a4450;
color:#e6eaf0}}
.chart text{fill:currentColor;stroke:none}
.chart path{fill:none;stroke-width:2;stroke-linejoin:round}
.chart .axis{stroke:currentColor;stroke-width:1}.chart .grid{stroke:var(--line);stroke-width:1}
.chart .reference{stroke:currentColor;stroke-width:1;stroke-dasharray:2 4}
.chart .s0{stroke:var(--s0)}.chart .s1{stroke:var(--s1);stroke-dasharray:7 3}.chart .s2{stroke:var(--s2);stroke-dasharray:2 3}
.chart .s3{stroke:var(--s3);stroke-dasharray:9 3 2 3}.chart .s4{stroke:var(--s4);stroke-dasharray:4 4}
.chart .s5{stroke:var(--s5);stroke-dasharray:12 4}.chart .s6{stroke:var(--s6);stroke-dasharray:14 3 2 3 2 3}
.chart .s7{stroke:var(--s7);stroke-dasharray:1 4}
.chart circle,.chart rect{stroke:none!important}
.chart .s0:is(circle,rect){fill:var(--s0)}.chart .s1:is(circle,rect){fill:var(--s1)}.chart .s2:is(circle,rect){fill:var(--s2)}
.chart .s3:is(circle,rect){fill:var(--s3)}.chart .s4:is(circle,rect){fill:var(--s4)}.chart .s5:is(circle,rect){fill:var(--s5)}
.chart .s6:is(circle,rect){fill:var(--s6)}.chart .s7:is(circle,rect){fill:var(--s7)}
)";
}

std::string StandaloneSvg(const std::string& svg) {
  const size_t end = std::min(svg.find('>'), svg.size() - 1) + 1;
  return svg.substr(0, end) + "<style>" + std::string(ChartStyle()) +
         "@media (prefers-color-scheme:dark){.chart{background:#14191f}}</style>" +
         svg.substr(end) + "\n";
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // Control characters are not allowed in XML, but for white space.
        out += static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' ? ' ' : c;
    }
  }
  return out;
}

}  // namespace lathe
