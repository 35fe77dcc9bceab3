#include "lathe/train/report/confusion.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <vector>

#include "lathe/train/report/chart.h"
#include "lathe/train/report/chart_parts.h"
#include "lathe/train/report/headings.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostClasses = 30;        // of a matrix in the page
constexpr size_t kMostClassesInFile = 40;  // of a matrix in a file
constexpr size_t kMostPairs = 30;          // of confused classes
constexpr double kMostNameWidth = 150, kCellHeight = 24;

std::string NameOf(const Json& one) { return one.at("label").get<std::string>(); }

using Pair = std::tuple<int64_t, std::string, std::string>;  // count, right class, prediction

std::vector<Pair> WrongPairs(const Json& report) {
  std::vector<Pair> pairs;
  if (const auto cells = report.find("confusion_cells"); cells != report.end()) {
    for (const Json& cell : *cells) {
      if (cell.at("label") != cell.at("prediction"))
        pairs.emplace_back(cell.at("count"), cell.at("label"), cell.at("prediction"));
    }
    return pairs;
  }
  const Json& matrix = report.at("confusion_matrix");
  const Json& classes = report.at("classes");
  for (size_t row = 0; row < matrix.size(); ++row) {
    for (size_t column = 0; column < matrix.size(); ++column) {
      if (row != column && matrix[row][column] > 0) {
        pairs.emplace_back(matrix[row][column], classes[row].at("label"),
                           classes[column].at("label"));
      }
    }
  }
  return pairs;
}

std::string PairsTable(const Json& report) {
  std::vector<Pair> pairs = WrongPairs(report);
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return std::get<0>(a) > std::get<0>(b); });
  if (pairs.size() > kMostPairs) pairs.resize(kMostPairs);
  std::string html =
      "<table class=\"text\"><thead><tr><th scope=\"col\">right class</th><th "
      "scope=\"col\">prediction</th>"
      "<th scope=\"col\" class=\"number\">samples</th></tr></thead><tbody>";
  for (const auto& [count, label, prediction] : pairs) {
    html += "<tr><th scope=\"row\">" + EscapeHtml(label) + "</th><td>" + EscapeHtml(prediction) +
            "</td><td class=\"number\">" + FormatCount(count) + "</td></tr>";
  }
  return html + "</tbody></table>";
}

std::string MatrixTable(const Json& matrix, const Json& classes) {
  std::string html =
      "<table class=\"matrix\"><thead><tr><th scope=\"col\">right class \\ prediction</th>";
  for (const Json& one : classes) html += Heading(HeadingOf::kColumn, NameOf(one));
  html += "</tr></thead><tbody>";
  for (size_t row = 0; row < matrix.size(); ++row) {
    const auto counts = matrix[row].get<std::vector<int64_t>>();
    const double sum = std::max(
        1.0, static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
    html += "<tr>" + Heading(HeadingOf::kRow, NameOf(classes[row]));
    for (size_t column = 0; column < counts.size(); ++column) {
      const double share = static_cast<double>(counts[column]) / sum;
      html += std::string("<td class=\"") + (row == column ? "right" : "wrong") +
              "\" style=\"--share:" + FormatNumber("%.3f", share) + "\">" +
              FormatCount(counts[column]) + "</td>";
    }
    html += "</tr>";
  }
  return html + "</tbody></table>";
}

bool HasCounts(const Json& report) {
  const auto classes = report.find("classes");
  return classes != report.end() && !classes->empty() && classes->front().contains("confusion");
}

// Returns a row for each of several labels at once.
std::string CountsTable(const Json& classes) {
  constexpr const char* kKeys[] = {"true_positives", "false_positives", "false_negatives",
                                   "true_negatives"};
  std::string html = "<table><thead><tr><th scope=\"col\" class=\"name\">label</th>";
  for (const char* heading : {"given rightly (TP)", "given wrongly (FP)", "left out wrongly (FN)",
                              "left out rightly (TN)"})
    html += std::string("<th scope=\"col\">") + heading + "</th>";
  html += "</tr></thead><tbody>";
  for (const Json& one : classes) {
    html += "<tr><th scope=\"row\">" + EscapeHtml(NameOf(one)) + "</th>";
    for (const char* key : kKeys)
      html += "<td>" + FormatCount(one.at("confusion").at(key).get<int64_t>()) + "</td>";
    html += "</tr>";
  }
  return html + "</tbody></table>";
}

using Matrix = std::vector<std::vector<int64_t>>;

// Sizes of the figure of a matrix.
struct Grid {
  double left, top;  // of the cells
  double width;      // of a cell
};

Grid GridOf(const Matrix& matrix, const Json& classes) {
  double names = 60, counts = 24;
  for (const Json& one : classes) names = std::max(names, TextWidth(NameOf(one)));
  for (const auto& row : matrix) {
    for (const int64_t count : row) counts = std::max(counts, TextWidth(FormatCount(count)));
  }
  names = std::min(names, kMostNameWidth);
  return {.left = 24 + names + 8, .top = 24 + names + 8, .width = counts + 8};
}

std::string Upright(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text transform=\"translate(" + Place(x) + " " + Place(y) +
         ") rotate(-90)\" text-anchor=\"" + anchor + "\">" + EscapeHtml(text) + "</text>";
}

std::string MatrixRow(const std::vector<int64_t>& counts, size_t row, const Grid& grid) {
  const double sum =
      std::max(1.0, static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
  const double y = grid.top + kCellHeight * static_cast<double>(row);
  std::string svg;
  for (size_t column = 0; column < counts.size(); ++column) {
    const double x = grid.left + grid.width * static_cast<double>(column);
    const double share = static_cast<double>(counts[column]) / sum;
    svg += "<rect class=\"" + StyleOf(row == column ? 0 : 1) + "\" x=\"" + Place(x) + "\" y=\"" +
           Place(y) + "\" width=\"" + Place(grid.width - 1) + "\" height=\"" +
           Place(kCellHeight - 1) + "\" fill-opacity=\"" + FormatNumber("%.3f", share / 2) +
           "\"/>" + SvgText(x + grid.width / 2, y + 16, "middle", FormatCount(counts[column]));
  }
  return svg;
}

}  // namespace

TitledTable ConfusionTable(const Json& report) {
  const auto matrix = report.find("confusion_matrix");
  if (matrix != report.end() && matrix->size() <= kMostClasses)
    return {"Confusion matrix", MatrixTable(*matrix, report.at("classes"))};
  if (matrix != report.end() || report.contains("confusion_cells"))
    return {"Classes that are confused most often", PairsTable(report)};
  if (HasCounts(report))
    return {"Right and wrong answers for each label", CountsTable(report.at("classes"))};
  return {};
}

std::string ConfusionSvg(const Json& report) {
  const auto found = report.find("confusion_matrix");
  if (found == report.end() || found->empty() || found->size() > kMostClassesInFile) return "";
  const auto matrix = found->get<Matrix>();
  const Json& classes = report.at("classes");
  const Grid grid = GridOf(matrix, classes);
  const auto size = static_cast<double>(matrix.size());
  const double right = grid.left + grid.width * size, bottom = grid.top + kCellHeight * size;
  std::string svg =
      SvgOpening(right + 12, bottom + 12,
                 "Confusion matrix of " + std::to_string(matrix.size()) + " classes.") +
      SvgText(grid.left, 16, "start", "prediction") + Upright(16, bottom, "start", "right class");
  for (size_t i = 0; i < matrix.size(); ++i) {
    const auto place = static_cast<double>(i);
    const std::string name = NameOf(classes.at(i));
    svg +=
        SvgText(grid.left - 8, grid.top + kCellHeight * place + 16, "end", name, kMostNameWidth) +
        Upright(grid.left + grid.width * (place + 0.5) + 4, grid.top - 8, "start",
                CutToWidth(name, kMostNameWidth)) +
        MatrixRow(matrix[i], i, grid);
  }
  return svg + "</svg>";
}

}  // namespace lathe
