#include "lathe/train/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lathe/train/report/chart_parts.h"

namespace lathe {
namespace {

constexpr double kPlotHeight = 206, kBelow = 42;  // the plot, and what lies below it
constexpr double kLeastLeft = 68;                 // beside it
constexpr size_t kMostPoints = 400;               // of a curve
constexpr size_t kMostMarkers = 40;               // points that are also drawn as dots
constexpr size_t kMostBarNames = 12;              // that fit below the bars

// A span below this share of its numbers comes of rounding, and has no ticks.
constexpr double kLeastSpan = 1e-9;

double LargestOf(double low, double high) { return std::max(std::abs(low), std::abs(high)); }

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
    const double largest = LargestOf(low, high), span = high - low;
    const double width =
        span > largest * kLeastSpan ? span * margin : std::max(largest * 0.1, 1e-9);
    return {low - width, high + width};
  }
};

// Where the plot lies. A legend makes the figure higher, and leaves the plot as it is.
struct Frame {
  double left, top, bottom, height;
};

// Leaves room for the numbers beside the axis, and for the label beside these.
double LeftOf(double low, double high, const ChartOptions& options) {
  double widest = 0;
  for (const double tick : RoundTicks(low, high, 5))
    widest = std::max(widest, TextWidth(TickLabel(tick)));
  return std::max(kLeastLeft, widest + (options.y_label.empty() ? 10 : 26));
}

Frame FrameOf(double left, const Legend& legend) {
  return {.left = left,
          .top = legend.height,
          .bottom = legend.height + kPlotHeight,
          .height = legend.height + kPlotHeight + kBelow};
}

// Returns, for a screen reader, the last and the outermost values of each series.
std::string Summary(const std::vector<Series>& series, const ChartOptions& options) {
  std::string text;
  for (const Series& one : series) {
    Range range;
    double last = 0;
    for (const double y : one.y) {
      range.Add(y);
      if (std::isfinite(y)) last = y;
    }
    if (!(range.low <= range.high)) continue;
    text += (text.empty() ? " " : "; ") + one.name + " ";
    // Curves over something else than time have no last value that matters.
    if (!options.steps && !options.diagonal) text += "last " + Label(last) + ", ";
    text += "lowest " + Label(range.low) + ", highest " + Label(range.high);
  }
  return text.empty() ? options.title : options.title + "." + text + ".";
}

std::string YAxis(const Axis& y, const Frame& frame, const ChartOptions& options) {
  const double right = kChartWidth - kChartRight;
  std::string svg;
  for (const double tick : RoundTicks(y.low(), y.high(), 5)) {
    svg += SvgLine("grid", frame.left, y.At(tick), right, y.At(tick)) +
           SvgText(frame.left - 6, y.At(tick) + 4, "end", TickLabel(tick));
  }
  svg += SvgLine("axis", frame.left, frame.top, frame.left, frame.bottom) +
         SvgLine("axis", frame.left, frame.bottom, right, frame.bottom);
  if (!options.y_label.empty()) {
    const std::string middle = Place((frame.top + frame.bottom) / 2);
    svg += "<text transform=\"translate(12 " + middle + ") rotate(-90)\" text-anchor=\"middle\">" +
           EscapeHtml(options.y_label) + "</text>";
  }
  return svg;
}

std::string XLabel(const Frame& frame, const ChartOptions& options) {
  if (options.x_label.empty()) return "";
  const double width = kChartWidth - kChartRight - frame.left;
  return SvgText(frame.left + width / 2, frame.height - 6, "middle", options.x_label);
}

// Returns a text below the axis, moved to the left if it would leave the figure.
std::string XTick(double x, const Frame& frame, const std::string& text) {
  const double most = kChartWidth - TextWidth(text) / 2;
  return SvgText(std::min(x, most), frame.bottom + 16, "middle", text);
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

// Returns, for a screen reader, where the highest bar of each series is.
std::string BarSummary(const std::vector<std::string>& names, const std::vector<Series>& series,
                       const ChartOptions& options) {
  std::string text = options.title + ".";
  for (const Series& one : series) {
    size_t highest = one.y.size();
    for (size_t i = 0; i < one.y.size() && i < names.size(); ++i) {
      if (!std::isfinite(one.y[i])) continue;
      if (highest == one.y.size() || one.y[i] > one.y[highest]) highest = i;
    }
    if (highest == one.y.size()) continue;
    text += " " + one.name + " highest " + Label(one.y[highest]) + ", at " + names[highest] + ".";
  }
  return text;
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
  const double low = options.y_low.value_or(wide.low), high = options.y_high.value_or(wide.high);
  const double left = LeftOf(low, high, options);
  const Legend legend = MakeLegend(series, left, /*bars=*/false);
  const Frame frame = FrameOf(left, legend);
  const Axis x(options.x_low.value_or(across.low), options.x_high.value_or(across.high), left,
               kChartWidth - kChartRight);
  const Axis y(low, high, frame.bottom, frame.top);
  std::string svg =
      SvgOpening(kChartWidth, frame.height, Summary(series, options)) + YAxis(y, frame, options);
  for (const double tick : RoundTicks(x.low(), x.high(), 6))
    svg += XTick(x.At(tick), frame, TickLabel(tick));
  svg += XLabel(frame, options) + legend.svg;
  if (options.diagonal) {
    const double first = std::max(x.low(), y.low()), last = std::min(x.high(), y.high());
    svg += SvgLine("reference", x.At(first), y.At(first), x.At(last), y.At(last));
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
  const double begin = LeftOf(0, high, options);
  const Legend legend = MakeLegend(series, begin, /*bars=*/true);
  const Frame frame = FrameOf(begin, legend);
  const Axis y(0, high, frame.bottom, frame.top);
  std::string svg = SvgOpening(kChartWidth, frame.height, BarSummary(names, series, options)) +
                    YAxis(y, frame, options) + XLabel(frame, options) + legend.svg;
  const double slot =
      (kChartWidth - begin - kChartRight) / std::max(1.0, static_cast<double>(names.size()));
  const double bar = slot * 0.8 / std::max(1.0, static_cast<double>(series.size()));
  // So many slots lie between two names that the names don't meet.
  const size_t stride = (names.size() + kMostBarNames - 1) / kMostBarNames;
  for (size_t i = 0; i < names.size(); ++i) {
    const double left = begin + slot * (static_cast<double>(i) + 0.1);
    for (size_t s = 0; s < series.size(); ++s) {
      if (i >= series[s].y.size() || !std::isfinite(series[s].y[i])) continue;
      const double top = y.At(std::clamp(series[s].y[i], 0.0, high));
      svg += "<rect class=\"" + StyleOf(s) + "\" x=\"" +
             Place(left + bar * static_cast<double>(s)) + "\" y=\"" + Place(top) + "\" width=\"" +
             Place(bar) + "\" height=\"" + Place(frame.bottom - top) + "\"><title>" +
             EscapeHtml(names[i] + ", " + series[s].name + ": " + Label(series[s].y[i])) +
             "</title></rect>";
    }
    if (i % stride == 0) svg += XTick(left + slot * 0.4, frame, names[i]);
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
  if (!(high - low > LargestOf(low, high) * kLeastSpan) || most < 1) return {};
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
.chart text{fill:currentColor;stroke:none}.chart .undefined{font-size:11px;font-style:italic}
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
