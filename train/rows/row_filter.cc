#include "lathe/train/rows/row_filter.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/rows/read_table.h"

namespace lathe {
namespace {

// Returns a text that is the same for all labels of this kind that mean the same. A label that
// can't be read is returned as it is, and an error names its row later.
std::string MeaningOf(const std::string& label, LabelKind kind) {
  if (kind == LabelKind::kRegression) {
    const std::optional<double> score = ParseNumber(label);
    return score ? DumpJson(nlohmann::json(*score + 0.0)) : label;  // -0 becomes 0
  }
  if (kind != LabelKind::kMultiLabel) return label;
  try {
    std::optional<std::vector<std::string>> names = ParseLabelArray(label);
    if (!names) return label;
    std::ranges::sort(*names);
    return DumpJson(nlohmann::json(*names));
  } catch (const Error&) {
    return label;
  }
}

}  // namespace

TextTable TakeRows(TextTable& table, const std::vector<bool>& taken) {
  TextTable out{.path = table.path,
                .names = table.names,
                .columns = std::vector<std::vector<std::string>>(table.columns.size()),
                .lines = {},
                .first_array_lines = table.first_array_lines,
                .elements = {},
                .unusable = table.unusable,
                .without_text = table.without_text};
  size_t kept = 0;
  for (size_t row = 0; row < taken.size(); ++row) {
    for (size_t c = 0; c < table.columns.size(); ++c) {
      std::string& cell = table.columns[c][row];
      if (taken[row]) {
        out.columns[c].push_back(std::move(cell));
      } else if (kept != row) {
        table.columns[c][kept] = std::move(cell);
      }
    }
    const bool has_element = !table.elements.empty();
    if (taken[row]) {
      out.lines.push_back(table.lines[row]);
      if (has_element) out.elements.push_back(table.elements[row]);
    } else {
      if (has_element) table.elements[kept] = table.elements[row];
      table.lines[kept++] = table.lines[row];
    }
  }
  CutRows(table, static_cast<int64_t>(kept));
  return out;
}

uint64_t HashOfTexts(std::string_view first, std::string_view second) {
  constexpr std::hash<std::string_view> kHash;
  // Rotated and multiplied, so that the order of the two texts counts.
  return std::rotl(kHash(first), 23) * 0x9E3779B97F4A7C15u ^ kHash(second);
}

void RowFilter::DropDuplicates(TextTable& rows, const TextColumns& columns, int64_t wanted) {
  const std::vector<std::string>& first = rows.column(columns.first);
  const std::vector<std::string>* second =
      columns.second.empty() ? nullptr : &rows.column(columns.second);
  const std::vector<std::string>& labels = rows.column(options_.label_column);
  std::vector<bool> repeated(first.size());
  for (size_t row = 0; row < first.size() && wanted > 0; ++row) {
    const uint64_t texts = HashOfTexts(first[row], second != nullptr ? (*second)[row] : "");
    const uint64_t hash =
        texts * 0x9E3779B97F4A7C15u ^ HashOfTexts(MeaningOf(labels[row], kind_), "");
    repeated[row] = !seen_.insert(hash).second;
    wanted -= repeated[row] ? 0 : 1;
  }
  num_dropped_ += TakeRows(rows, repeated).rows();
}

void RowFilter::Apply(TextTable& rows, const TextColumns& columns) {
  if (split_.rows != DataSplit::Rows::kAll && rule_ != nullptr) {
    std::vector<bool> others = rule_->Validates(rows, columns, options_.label_column);
    if (split_.rows == DataSplit::Rows::kValidating) others.flip();
    TakeRows(rows, others);
  }
  const int64_t left = split_.max_rows ? *split_.max_rows - num_kept_ : rows.rows();
  if (split_.drops_duplicates && left > 0) DropDuplicates(rows, columns, left);
  if (split_.max_rows) CutRows(rows, left);
  num_kept_ += rows.rows();
}

std::string NoteOnDuplicates(const DataSplit& split, int64_t num_dropped) {
  if (num_dropped == 0) return "";
  return OptionName("drop_duplicates") + " leaves out " + std::to_string(num_dropped) +
         " repeated " + (num_dropped == 1 ? "row" : "rows") + " of the " + split.name + " data";
}

}  // namespace lathe
