#include "lathe/train/report/chart_parts.h"

#include <algorithm>
#include <cmath>

#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr double kLegendRow = 18;
constexpr double kMostInLegend = 375;  // the width of a name
constexpr double kCharacter = 7.5, kCapital = 9.5, kWide = 14;

bool BeginsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// Returns the width of the character that begins so.
double CharacterWidth(char c) {
  // UTF-8 begins so from U+3000 on: Chinese, Japanese, Korean, pictures.
  if (static_cast<unsigned char>(c) >= 0xE3) return kWide;
  return (c >= 'A' && c <= 'Z') || c == 'm' || c == 'w' || c == '@' || c == '%' ? kCapital
                                                                                : kCharacter;
}

}  // namespace

std::string Place(double value) { return FormatNumber("%.1f", value); }
std::string Label(double value) { return FormatNumber("%.5g", value == 0 ? 0 : value); }

std::string TickLabel(double value) {
  const double size = std::abs(value);
  if (size >= 1e12 || size < 1e4) return Label(value);
  if (size >= 1e9) return Label(value / 1e9) + "G";
  if (size >= 1e6) return Label(value / 1e6) + "M";
  return Label(value / 1e3) + "k";
}

std::string StyleOf(size_t i) { return "s" + std::to_string(i % kNumStyles); }

double TextWidth(std::string_view utf8) {
  double width = 0;
  for (const char c : utf8) {
    if (BeginsCharacter(c)) width += CharacterWidth(c);
  }
  return width;
}

std::string CutToWidth(const std::string& text, double width) {
  if (TextWidth(text) <= width) return text;
  std::vector<std::string> characters;
  for (const char c : text) {
    if (characters.empty() || BeginsCharacter(c)) characters.emplace_back();
    characters.back() += c;
  }
  // One from the beginning, one from the end, and so on.
  std::string head, tail;
  double room = width - TextWidth("…");
  for (size_t first = 0, last = characters.size(); first < last;) {
    const bool from_head = first <= characters.size() - last;
    const std::string& next = from_head ? characters[first++] : characters[--last];
    room -= CharacterWidth(next[0]);
    if (room < 0) break;
    if (from_head) {
      head += next;
    } else {
      tail.insert(0, next);
    }
  }
  return head + "…" + tail;
}

std::string SvgText(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + Place(x) + "\" y=\"" + Place(y) + "\" text-anchor=\"" + anchor + "\">" +
         EscapeHtml(text) + "</text>";
}

std::string SvgText(double x, double y, const std::string& anchor, const std::string& text,
                    double width) {
  const std::string cut = CutToWidth(text, width);
  std::string svg = SvgText(x, y, anchor, cut);
  if (cut == text) return svg;
  const std::string end = "</text>";
  return svg.substr(0, svg.size() - end.size()) + "<title>" + EscapeHtml(text) + "</title>" + end;
}

std::string SvgLine(const std::string& style, double x1, double y1, double x2, double y2) {
  return "<path class=\"" + style + "\" d=\"M" + Place(x1) + " " + Place(y1) + "L" + Place(x2) +
         " " + Place(y2) + "\"/>";
}

std::string SvgOpening(double width, double height, const std::string& label) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 " + Label(width) +
         " " + Label(height) + "\" role=\"img\" aria-label=\"" + EscapeHtml(label) + "\">";
}

Legend MakeLegend(const std::vector<Series>& series, double left, bool bars) {
  Legend legend;
  if (series.size() < 2) return legend;
  constexpr double kMark = 26, kGap = 16;
  double at = left, row = 0;
  for (size_t i = 0; i < series.size(); ++i) {
    const double most = std::min(kMostInLegend, kChartWidth - kChartRight - left - kMark);
    const double width = kMark + std::min(most, TextWidth(series[i].name));
    if (at > left && at + width > kChartWidth - kChartRight) {
      at = left;
      ++row;
    }
    const double y = 14 + kLegendRow * row;
    legend.svg += bars ? "<rect class=\"" + StyleOf(i) + "\" x=\"" + Place(at + 6) + "\" y=\"" +
                             Place(y - 6) + "\" width=\"12\" height=\"12\"/>"
                       : SvgLine(StyleOf(i), at, y, at + kMark - 4, y);
    legend.svg += SvgText(at + kMark, y + 4, "start", series[i].name, most);
    at += width + kGap;
  }
  legend.height += kLegendRow * (row + 1);
  return legend;
}

}  // namespace lathe
