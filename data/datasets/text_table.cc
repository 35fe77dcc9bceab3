#include "lathe/data/datasets/text_table.h"

#include <algorithm>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

std::string At(const std::string& path, int64_t line) { return path + ":" + std::to_string(line); }

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// Returns the names of all columns, first those of the first row.
std::vector<std::string> AllNames(const TextTable& table) {
  std::vector<std::string> names = table.names;
  for (const auto& [name, value] : table.unusable) {
    if (std::ranges::find(table.names, name) == table.names.end()) names.push_back(name);
  }
  return names;
}

// Throws if a row of a column that nobody has named lacks a text.
void CheckEachRowHasText(const TextTable& table, const std::string& name) {
  const auto found = table.unusable.find(name);
  if (found == table.unusable.end()) return;
  const UnusableValue& value = found->second;
  throw InvalidArgument(NameOfRow(table.path, value.line, value.element) + ": " + value.problem +
                            " but other rows have a text there",
                        "give each row a text there, or name the columns of texts")
      .WithDetail(UnusableColumn{name});
}

// Throws if the column has arrays.
void CheckTexts(const TextTable& table, const std::string& name) {
  const auto c = static_cast<size_t>(&table.column(name) - table.columns.data());
  if (c >= table.first_array_lines.size() || table.first_array_lines[c] == 0) return;
  throw InvalidArgument(At(table.path, table.first_array_lines[c]) + ": the value of " +
                            Quoted(name) + " is an array but must be a text",
                        "write it as one string or name another column");
}

}  // namespace

bool TextTable::has(const std::string& name) const {
  return std::find(names.begin(), names.end(), name) != names.end() || unusable.contains(name);
}

const std::vector<std::string>& TextTable::column(const std::string& name) const {
  if (const auto found = unusable.find(name); found != unusable.end()) {
    const UnusableValue& value = found->second;
    throw InvalidArgument(
        NameOfRow(path, value.line, value.element) + ": " + value.problem,
        "give each row a string, a number, a boolean or an array of labels, or name another column")
        .WithDetail(UnusableColumn{name});
  }
  auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) {
    throw NotFound(path + ": no column " + Quoted(name) + "; it has: " + Join(names),
                   "name the column to use, or rename the one in the file")
        .WithDetail(MissingColumn{name});
  }
  return columns[it - names.begin()];
}

std::string TextTable::Where(int64_t row) const {
  return NameOfRow(path, lines[row], element(row));
}

std::string NameOfRow(const std::string& path, int64_t line, int64_t element) {
  return At(path, line) + (element > 0 ? ": element " + std::to_string(element) : "");
}

TextColumns ChooseTextColumns(const TextTable& table, const std::vector<std::string>& named,
                              const std::string& label_column, const std::string& weight_column) {
  if (named.size() > 2) {
    throw InvalidArgument(table.path + ": expected one or two text columns but got " +
                          std::to_string(named.size()) + ": " + Join(named));
  }
  std::vector<std::string> chosen = named;
  const auto may_be_text = [&](const std::string& name) {
    return table.has(name) && !table.without_text.contains(name);
  };
  if (chosen.empty() && may_be_text("sentence1") && may_be_text("sentence2")) {
    chosen = {"sentence1", "sentence2"};
  }
  std::string without_text;  // the first column that would be chosen if it had texts
  // `lathe predict --output` has added columns.
  const bool predicted = table.has("prediction") && table.has("probability");
  for (const std::string& name : named.empty() ? AllNames(table) : std::vector<std::string>()) {
    if (chosen.size() == 2) break;
    if (name == weight_column || name == label_column || name == "idx" || name == "id") continue;
    if (name.empty() || (predicted && (name == "prediction" || name.starts_with("probability"))))
      continue;
    if (may_be_text(name)) {
      chosen.push_back(name);
    } else if (without_text.empty()) {
      without_text = name;
    }
  }
  if (chosen.empty() && !without_text.empty()) chosen = {without_text};  // the checks tell why not
  if (chosen.empty()) {
    throw InvalidArgument(table.path + ": no text column; it has: " + Join(table.names),
                          "name the text column");
  }
  for (const std::string& name : chosen) {
    if (named.empty() && may_be_text(name)) CheckEachRowHasText(table, name);
    CheckTexts(table, name);
  }
  return {.first = chosen[0], .second = chosen.size() > 1 ? chosen[1] : ""};
}

std::string JoinedColumns::Name() const {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : " + ") + name;
  return out;
}

std::vector<std::string> JoinedTexts(const TextTable& table, const JoinedColumns& columns) {
  std::vector<std::string> texts(static_cast<size_t>(table.rows()));
  for (size_t c = 0; c < columns.names.size(); ++c) {
    const std::vector<std::string>& column = table.column(columns.names[c]);
    CheckTexts(table, columns.names[c]);
    for (size_t row = 0; row < texts.size(); ++row)
      texts[row].append(c > 0 ? columns.delimiter : "").append(column[row]);
  }
  return texts;
}

void JoinColumns(TextTable& table, const JoinedColumns& columns) {
  if (columns.names.size() < 2) return;
  std::vector<std::string> texts = JoinedTexts(table, columns);
  table.names.insert(table.names.begin(), columns.Name());
  table.columns.insert(table.columns.begin(), std::move(texts));
  if (!table.first_array_lines.empty())
    table.first_array_lines.insert(table.first_array_lines.begin(), 0);
}

}  // namespace lathe
