// TextTable: a CSV, TSV or JSON file as named columns of UTF-8 strings.
//
//   TextTable table = ReadTextTable("train.csv");
//   TextColumns columns = ChooseTextColumns(table, {});   // as run_glue chooses
//   const std::string& text = table.column(columns.first)[0];
//
// An unusable file causes a lathe::Error that names the file and, if there is one, the line.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

enum class InvalidUtf8 { kError, kReplace };

// Details of errors (Error::detail). They tell a caller which flag would avoid the error.
struct FoundInvalidUtf8 {};  // InvalidUtf8::kReplace would avoid the error
struct MissingColumn {
  std::string column;
};
struct UnusableColumn {  // see UnusableValue
  std::string column;
};

// The first row of a file in JSON that has no text for a column.
struct UnusableValue {
  int64_t line = 0, element = 0;  // see NameOfRow
  std::string problem;            // `key "x" is missing`, or `the value of "x" is null`
};

// A whole file: named columns, all of the same length.
struct TextTable {
  std::string path;
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> columns;  // columns[c][row]
  std::vector<int64_t> lines;                     // [rows] the line on which the row starts, from 1
  // For each column the first line that has a JSON array in it, or 0. May be empty.
  std::vector<int64_t> first_array_lines;
  // [rows] if the file is one array in JSON: the number of the row's object in it, from 1. An array
  // may be a single line, so the line alone doesn't tell which row it is. Empty for other files.
  std::vector<int64_t> elements = {};
  // Columns of a file in JSON that can't be used, by name. An object may lack a key, or have null
  // or an object under it. `names` are the keys of the file's first object. Keys that only others
  // have are here alone, since the first one lacks them.
  std::map<std::string, UnusableValue> unusable = {};
  // Columns of a file in JSON that hold no texts so far. They have nulls alone, or their first
  // value other than null is an array or an object.
  std::set<std::string> without_text = {};
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
  // Returns true if the file has the column, even if it can't be used.
  bool has(const std::string& name) const;
  // Throws `path: no column "x"; it has: a, b`, or `path:line: key "x" is missing` for a column
  // that can't be used.
  const std::vector<std::string>& column(const std::string& name) const;
  // Returns the number of the row's object in an array in JSON; 0 for other files.
  int64_t element(int64_t row) const {
    return elements.empty() ? 0 : elements[static_cast<size_t>(row)];
  }
  // Returns NameOfRow of a row.
  std::string Where(int64_t row) const;
};

// Returns "path:line", for messages about a row. If `element` is above 0, it is the number of the
// row's object in an array in JSON: "path:line: element 17".
std::string NameOfRow(const std::string& path, int64_t line, int64_t element = 0);

// Reads a text file, whose extension tells the format. A second extension .gz or .zst, as in
// train.csv.gz, tells how it is compressed.
//   .csv           RFC 4180: quotes, doubled quotes, line breaks inside quotes, LF or CRLF. The
//                  first row names the columns. A quote inside an unquoted field is an ordinary
//                  character.
//   .tsv           Split at tabs, without quoting (GLUE's files have lone quotes). The first row
//                  names the columns.
//   .json, .jsonl  One object a line. Strings are taken as they are; numbers, booleans and arrays
//                  (labels) as JSON text. A column that some object lacks, or that holds null or an
//                  object, is an error only where it is used (TextTable::unusable). A .json file
//                  may instead be one array of such objects.
// A UTF-8 byte order mark and blank lines are skipped.
//
// Throws `path:line: what` for a ragged row, a broken quote, broken JSON, or a duplicate column
// name. Invalid UTF-8 is such an error, too, unless kReplace puts U+FFFD in its place. Throws
// `path: what` for a missing or unreadable file, one without rows, an unknown extension, or
// compressed data that are damaged or cut short.
TextTable ReadTextTable(const std::string& path, InvalidUtf8 invalid = InvalidUtf8::kError);

// Parses `contents` as if `path` held them. `path` only serves for its extension and for messages.
TextTable ParseTextTable(const std::string& path, std::string_view contents,
                         InvalidUtf8 invalid = InvalidUtf8::kError);

// Returns the extension that tells the file's format, in small letters, without .gz or .zst.
std::string TableFormat(const std::string& path);

struct TextColumns {
  std::string first, second;  // second may be empty
};
// Returns the `named` columns (one or two). If none is named, chooses as run_glue does: sentence1
// and sentence2 if both are there. Otherwise it takes the first two columns that are not
// `label_column`, or the only one. `weight_column`, and the columns "idx", "id" and "" (a row index
// written by a data frame), are no text either. Nor are "prediction" and "probability...", if the
// table has both "prediction" and "probability", as `lathe predict` writes them. Nor are columns in
// TextTable::without_text. Throws if a chosen column has a text in some rows only, since it can't
// be told whether the column is meant.
TextColumns ChooseTextColumns(const TextTable& table, const std::vector<std::string>& named,
                              const std::string& label_column = "label",
                              const std::string& weight_column = "");

// Columns whose texts make one text together, as run_classification joins them.
struct JoinedColumns {
  std::vector<std::string> names;
  std::string delimiter = " ";
  // The name of the column that they make: "title + body". It is that of a lone column.
  std::string Name() const;
};

// Returns each row's texts of these columns, in their order, with the delimiter between them.
// Throws as TextTable::column does, and for a value that is an array in JSON.
std::vector<std::string> JoinedTexts(const TextTable& table, const JoinedColumns& columns);

// Puts a column with these texts, called columns.Name(), in front of the table's columns. Less than
// two columns need no joining, and leave the table as it is. Throws as JoinedTexts does.
void JoinColumns(TextTable& table, const JoinedColumns& columns);

}  // namespace lathe
