// TextTable: a CSV, TSV or JSON lines file as named columns of UTF-8 strings.
//
//   TextTable table = ReadTextTable("train.csv");
//   TextColumns columns = ChooseTextColumns(table, {});   // as run_glue chooses
//   const std::string& text = table.column(columns.first)[0];
//
// A file that cannot be used ends in one lathe::Error that names the file and, where there is one,
// the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

enum class InvalidUtf8 { kError, kReplace };

// A file read whole: named columns, all of the same length.
struct TextTable {
  std::string path;
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> columns;  // columns[c][row]
  std::vector<int64_t> lines;                     // [rows] line on which the row starts, 1-based
  std::vector<int64_t>
      array_lines;  // for each column the first line with a JSON array, or 0; may be empty
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
  bool has(const std::string& name) const;
  // Throws `path: no column "x"; it has: a, b`.
  const std::vector<std::string>& column(const std::string& name) const;
  // "path:line", for messages about a row.
  std::string Where(int64_t row) const;
};

// By extension:
//   .csv           RFC 4180: quotes, doubled quotes, line breaks inside quotes, LF or CRLF; first
//   row names the
//                  columns. A quote inside an unquoted field is an ordinary character.
//   .tsv           split at tabs, no quoting (GLUE's files have lone quotes); first row names the
//   columns. .json, .jsonl  one object a line, the same keys in each. Strings are taken as they
//   are; numbers, booleans and
//                  arrays (labels) as JSON text.
// A UTF-8 byte order mark and blank lines are skipped. Throws with `path:line: what` for a ragged
// row, an unterminated quote, invalid UTF-8 (unless kReplace puts U+FFFD), broken JSON, a missing
// or unexpected key; with `path: what` for a missing, unreadable or empty file (header only
// counts), a duplicate column name or an unknown extension.
TextTable ReadTextTable(const std::string& path, InvalidUtf8 invalid = InvalidUtf8::kError);

// Parses `contents` as the file `path` would be; `path` serves for the extension and the messages.
TextTable ParseTextTable(const std::string& path, std::string_view contents,
                         InvalidUtf8 invalid = InvalidUtf8::kError);

struct TextColumns {
  std::string first, second;  // second may be empty
};
// The named ones (one or two); if none is named, as run_glue: sentence1+sentence2 if both are
// there, else the first two columns that are not `label_column`, else the one. Columns "idx", "id"
// and "" (a row index written by a data frame) are no text either.
TextColumns ChooseTextColumns(const TextTable& table, const std::vector<std::string>& named,
                              const std::string& label_column = "label");

}  // namespace lathe
