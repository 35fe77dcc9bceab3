#include "lathe/apps/results/results_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lathe/core/json/json_text.h"
#include "lathe/data/utf8.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr size_t kNameWidth = 28, kNumberWidth = 11;
constexpr size_t kMostRows = 20;
// A confusion matrix of so many classes fits into 80 columns. More have a list of pairs.
constexpr size_t kMostMatrixClasses = 4, kMostPairs = 5;

void PrintRow(std::ostream& out, const std::string& name, const std::string& value) {
  out << "  " << name << std::string(name.size() < kNameWidth ? kNameWidth - name.size() : 1, ' ')
      << value << '\n';
}

std::string Right(const std::string& text, size_t width) {
  return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
}

std::string Number(const std::optional<double>& value) {
  return value ? FormatNumber("%.4f", *value) : "undefined";
}

// Returns the columns that a character takes. Exact for what names of labels are made of.
size_t ColumnsOf(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (in(0x300, 0x36F) || in(0x200B, 0x200F) || in(0xFE00, 0xFE0F)) return 0;
  const bool wide = in(0x1100, 0x115F) || in(0x2E80, 0xA4CF) || in(0xAC00, 0xD7A3) ||
                    in(0xF900, 0xFAFF) || in(0xFE30, 0xFE6F) || in(0xFF00, 0xFF60) ||
                    in(0xFFE0, 0xFFE6) || in(0x1F300, 0x1FAFF) || in(0x20000, 0x3FFFD);
  return wide ? 2 : 1;
}

void PrintScores(std::ostream& out, std::string_view name, const ClassScores& scores) {
  out << "  " << FitColumns(name, kNameWidth) << Right(Number(scores.precision), kNumberWidth)
      << Right(Number(scores.recall), kNumberWidth) << Right(Number(scores.f1), kNumberWidth)
      << Right(std::to_string(scores.support), kNumberWidth) << '\n';
}

// Returns the classes to show: all in their order, or those with most samples first.
std::vector<size_t> ShownClasses(const EvaluationReport& report) {
  std::vector<size_t> classes(report.labels.size());
  std::iota(classes.begin(), classes.end(), size_t{0});
  if (classes.size() <= kMostRows) return classes;
  std::stable_sort(classes.begin(), classes.end(), [&](size_t a, size_t b) {
    return report.labels[a].scores.support > report.labels[b].scores.support;
  });
  classes.resize(kMostRows);
  return classes;
}

void PrintMatrix(std::ostream& out, const EvaluationReport& report,
                 const std::vector<std::string>& names) {
  const size_t classes = names.size();
  std::vector<int64_t> counts(classes * classes);
  for (const ConfusionCell& cell : report.confusion) {
    counts[static_cast<size_t>(cell.label) * classes + static_cast<size_t>(cell.prediction)] =
        cell.count;
  }
  out << FitColumns("confusion, predicted as", kNameWidth + 2);
  for (const std::string& name : names) {
    std::string fitted = FitColumns(name, kNumberWidth - 2);
    const size_t spaces = fitted.size() - (fitted.find_last_not_of(' ') + 1);
    std::rotate(fitted.rbegin(), fitted.rbegin() + static_cast<int64_t>(spaces), fitted.rend());
    out << "  " << fitted;
  }
  out << '\n';
  for (size_t row = 0; row < classes; ++row) {
    out << "  " << FitColumns(names[row], kNameWidth);
    for (size_t c = 0; c < classes; ++c)
      out << Right(std::to_string(counts[row * classes + c]), kNumberWidth);
    out << '\n';
  }
}

void PrintPairs(std::ostream& out, const EvaluationReport& report,
                const std::vector<std::string>& names) {
  std::vector<ConfusionCell> wrong;
  for (const ConfusionCell& cell : report.confusion) {
    if (cell.label != cell.prediction) wrong.push_back(cell);
  }
  if (wrong.empty()) return;
  std::stable_sort(wrong.begin(), wrong.end(),
                   [](const auto& a, const auto& b) { return a.count > b.count; });
  wrong.resize(std::min(wrong.size(), kMostPairs));
  out << FitColumns("confused most often", kNameWidth + 2) << "  "
      << FitColumns("predicted as", kNameWidth) << Right("samples", kNumberWidth) << '\n';
  for (const ConfusionCell& cell : wrong) {
    out << "  " << FitColumns(names[static_cast<size_t>(cell.label)], kNameWidth) << "  "
        << FitColumns(names[static_cast<size_t>(cell.prediction)], kNameWidth)
        << Right(std::to_string(cell.count), kNumberWidth) << '\n';
  }
}

// Prints how often each of several labels is given and left out, rightly and wrongly.
void PrintCounts(std::ostream& out, const EvaluationReport& report,
                 const std::vector<std::string>& names, const std::vector<size_t>& shown) {
  out << FitColumns("answers, true (T) or false (F)", kNameWidth + 2) << Right("TP", kNumberWidth)
      << Right("FP", kNumberWidth) << Right("FN", kNumberWidth) << Right("TN", kNumberWidth)
      << '\n';
  for (const size_t c : shown) {
    const ClassCounts& counts = report.labels[c].counts;
    const int64_t wrong = counts.predicted - counts.correct;
    const int64_t missed = counts.actual - counts.correct;
    out << "  " << FitColumns(names[c], kNameWidth);
    for (const int64_t count :
         {counts.correct, wrong, missed, report.num_samples - counts.actual - wrong})
      out << Right(std::to_string(count), kNumberWidth);
    out << '\n';
  }
}

}  // namespace

void PrintMetrics(std::ostream& out, const std::string& title, const nlohmann::json& metrics) {
  out << title << '\n';
  for (const auto& [name, value] : metrics.items()) {
    PrintRow(out, name,
             value.is_number_float() ? FormatNumber("%.4f", value.get<double>()) : DumpJson(value));
  }
  out << std::flush;
}

void PrintReport(std::ostream& out, const EvaluationReport& report,
                 const std::vector<std::string>& names) {
  out << FitColumns("classes", kNameWidth + 2) << Right("precision", kNumberWidth)
      << Right("recall", kNumberWidth) << Right("f1", kNumberWidth)
      << Right("support", kNumberWidth) << '\n';
  const std::vector<size_t> shown = ShownClasses(report);
  for (const size_t c : shown) PrintScores(out, names[c], report.labels[c].scores);
  if (shown.size() < names.size()) {
    out << "  and " << names.size() - shown.size() << " other classes with fewer samples\n";
  }
  PrintScores(out, "micro mean", report.micro);
  PrintScores(out, "macro mean", report.macro);
  PrintScores(out, "weighted mean", report.weighted);
  PrintRow(out, "roc_auc", Number(report.roc_auc));
  PrintRow(out, "average_precision", Number(report.average_precision));
  PrintRow(out, "log_loss", Number(report.log_loss));
  PrintRow(out, "expected_calibration_error", Number(report.calibration.Error()));
  if (report.kind == LabelKind::kSingleLabel) {
    (names.size() <= kMostMatrixClasses ? PrintMatrix : PrintPairs)(out, report, names);
  }
  if (report.kind == LabelKind::kMultiLabel) PrintCounts(out, report, names, shown);
  out << std::flush;
}

std::string FitColumns(std::string_view text, size_t width) {
  const std::string valid = ReplaceInvalidUtf8(text);
  std::string fitted;
  size_t columns = 0, columns_before_cut = 0, bytes_before_cut = 0;
  for (size_t pos = 0; pos < valid.size();) {
    char32_t c = DecodeUtf8(valid, &pos);
    if (c < 0x20 || c == 0x7F) c = ' ';
    if (columns + ColumnsOf(c) > width) {  // leaves a column for the …
      fitted.resize(bytes_before_cut);
      columns = columns_before_cut + 1;
      fitted += "…";
      break;
    }
    AppendUtf8(c, &fitted);
    columns += ColumnsOf(c);
    if (columns < width) {
      bytes_before_cut = fitted.size();
      columns_before_cut = columns;
    }
  }
  return fitted + std::string(width - columns, ' ');
}

}  // namespace lathe
