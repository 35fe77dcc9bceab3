#include "lathe/data/datasets/text_table.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/json_nesting.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

std::string At(const std::string& path, int64_t line) { return path + ":" + std::to_string(line); }

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

void SetNames(TextTable& table, std::vector<std::string> names, int64_t line) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      throw InvalidArgument(At(table.path, line) + ": two columns are named " + Quoted(name),
                            "rename or remove one of them");
    }
  }
  table.columns.resize(names.size());
  table.names = std::move(names);
}

// Adds a row. The first row names the columns; the others must have as many fields.
void AddRow(TextTable& table, std::vector<std::string>& fields, int64_t line,
            const char* ragged_hint) {
  if (table.names.empty()) {
    SetNames(table, std::move(fields), line);
    return;
  }
  if (fields.size() != table.names.size()) {
    throw InvalidArgument(At(table.path, line) + ": expected " +
                              std::to_string(table.names.size()) +
                              (table.names.size() == 1 ? " column (" : " columns (") +
                              Join(table.names) + ") but got " + std::to_string(fields.size()),
                          ragged_hint);
  }
  for (size_t c = 0; c < fields.size(); ++c) table.columns[c].push_back(std::move(fields[c]));
  table.lines.push_back(line);
}

// Cuts the next line off `rest`, without its LF or CRLF.
std::string_view TakeLine(std::string_view& rest) {
  size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Reads a CSV file in one pass, field by field. It counts lines itself, as a quoted field may span
// several.
class CsvReader {
 public:
  CsvReader(TextTable& table, std::string_view contents) : table_(table), rest_(contents) {}

  void Read() {
    while (!rest_.empty()) {
      if (rest_.front() == '\n' || rest_.starts_with("\r\n")) {  // blank line
        TakeLine(rest_);
        ++line_;
        continue;
      }
      ReadRow();
    }
  }

 private:
  void ReadRow() {
    const int64_t first_line = line_;
    std::vector<std::string> fields;
    do {
      fields.push_back(rest_.starts_with('"') ? ReadQuoted() : ReadPlain());
    } while (TakeComma());
    AddRow(table_, fields, first_line,
           "put a field that contains a comma or a line break in double quotes");
  }

  std::string ReadPlain() {
    size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
    std::string_view field = rest_.substr(0, end);
    rest_.remove_prefix(end);
    if (!rest_.starts_with(',') && field.ends_with('\r')) field.remove_suffix(1);
    return std::string(field);
  }

  std::string ReadQuoted() {
    const int64_t first_line = line_;
    std::string field;
    rest_.remove_prefix(1);
    while (true) {
      size_t quote = rest_.find('"');
      if (quote == std::string_view::npos) {
        throw InvalidArgument(At(table_.path, first_line) + ": unterminated quote",
                              "close the field with a double quote; write a quote inside as \"\"");
      }
      std::string_view part = rest_.substr(0, quote);
      line_ += std::count(part.begin(), part.end(), '\n');
      field += part;
      rest_.remove_prefix(quote + 1);
      if (!rest_.starts_with('"')) break;
      field += '"';
      rest_.remove_prefix(1);
    }
    if (!rest_.empty() && rest_.front() != ',' && rest_.front() != '\n' &&
        !rest_.starts_with("\r\n") && rest_ != "\r") {
      throw InvalidArgument(At(table_.path, line_) + ": text after a closing quote",
                            "write a quote inside a quoted field as \"\"");
    }
    return field;
  }

  // Returns true if another field follows in this row; otherwise moves to the next line.
  bool TakeComma() {
    if (rest_.starts_with(',')) {
      rest_.remove_prefix(1);
      return true;
    }
    TakeLine(rest_);
    ++line_;
    return false;
  }

  TextTable& table_;
  std::string_view rest_;
  int64_t line_ = 1;
};

void ReadTsv(TextTable& table, std::string_view rest) {
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = TakeLine(rest);
    if (line.empty()) continue;
    std::vector<std::string> fields;
    while (true) {
      size_t tab = line.find('\t');
      fields.emplace_back(line.substr(0, tab));
      if (tab == std::string_view::npos) break;
      line.remove_prefix(tab + 1);
    }
    AddRow(table, fields, number,
           "a text must not contain tabs or line breaks in a .tsv; use .csv");
  }
}

// Parses the object on one line. nlohmann::json keeps the last of two equal keys, so this looks for
// repeated keys itself.
Json ParseObject(const std::string& path, int64_t line, std::string_view text) {
  CheckJsonNesting(text, At(path, line));
  std::vector<std::string> keys;
  auto note_key = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key) keys.push_back(parsed.get<std::string>());
    return true;
  };
  Json object;
  try {
    object = Json::parse(text, note_key);
  } catch (const Json::parse_error& e) {
    throw InvalidArgument(At(path, line) + ": broken JSON at byte " + std::to_string(e.byte),
                          "write one whole JSON object on each line");
  } catch (const Json::out_of_range&) {
    throw InvalidArgument(At(path, line) + ": a number is out of range",
                          "write numbers that a double can hold");
  }
  if (!object.is_object()) {
    throw InvalidArgument(At(path, line) + ": expected a JSON object but got " + object.type_name(),
                          "write one object a line, e.g. {\"sentence\": \"a text\", \"label\": 0}");
  }
  if (keys.size() != object.size()) {
    std::sort(keys.begin(), keys.end());
    throw InvalidArgument(At(path, line) + ": two columns are named " +
                              Quoted(*std::adjacent_find(keys.begin(), keys.end())),
                          "rename or remove one of them");
  }
  return object;
}

std::string CellOf(const std::string& path, int64_t line, const std::string& key,
                   const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean() || value.is_array()) return value.dump();
  throw InvalidArgument(At(path, line) + ": the value of " + Quoted(key) + " is " +
                            (value.is_null() ? "null" : "an object"),
                        "a value must be a string, a number, a boolean or an array of labels");
}

void ReadJsonLines(TextTable& table, std::string_view rest) {
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = TakeLine(rest);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json object = ParseObject(table.path, number, line);
    if (table.lines.empty()) {
      std::vector<std::string> names;
      for (const auto& [key, value] : object.items()) names.push_back(key);
      SetNames(table, std::move(names), number);
      table.first_array_lines.resize(table.names.size());
    }
    for (size_t c = 0; c < table.names.size(); ++c) {
      auto it = object.find(table.names[c]);
      if (it == object.end()) {
        throw InvalidArgument(
            At(table.path, number) + ": key " + Quoted(table.names[c]) + " is missing",
            "every object must have the keys of the first one: " + Join(table.names));
      }
      table.columns[c].push_back(CellOf(table.path, number, table.names[c], *it));
      if (it->is_array() && table.first_array_lines[c] == 0) table.first_array_lines[c] = number;
    }
    if (object.size() != table.names.size()) {
      for (const auto& [key, value] : object.items()) {
        if (!table.has(key)) {
          throw InvalidArgument(
              At(table.path, number) + ": unexpected key " + Quoted(key),
              "every object must have the keys of the first one: " + Join(table.names));
        }
      }
    }
    table.lines.push_back(number);
  }
}

std::string LowerExtension(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension;
}

// Called before the file is read: a wrong name should not cost reading gigabytes.
void CheckExtension(const std::string& path) {
  const std::string extension = LowerExtension(path);
  if (extension != ".csv" && extension != ".tsv" && extension != ".json" && extension != ".jsonl") {
    throw InvalidArgument(path + ": unknown file extension " + Quoted(extension),
                          "name the file .csv, .tsv, .json or .jsonl, whichever format it has");
  }
}

}  // namespace

bool TextTable::has(const std::string& name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const std::vector<std::string>& TextTable::column(const std::string& name) const {
  auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) {
    throw NotFound(path + ": no column " + Quoted(name) + "; it has: " + Join(names),
                   "name the column to use, or rename the one in the file")
        .WithDetail(MissingColumn{name});
  }
  return columns[it - names.begin()];
}

std::string TextTable::Where(int64_t row) const { return At(path, lines[row]); }

TextTable ParseTextTable(const std::string& path, std::string_view contents, InvalidUtf8 invalid) {
  CheckExtension(path);
  if (contents.starts_with("\xEF\xBB\xBF")) contents.remove_prefix(3);
  std::string replaced;
  if (size_t at = ValidateUtf8(contents); at != std::string_view::npos) {
    if (invalid == InvalidUtf8::kError) {
      throw InvalidArgument(
          At(path, 1 + std::count(contents.begin(), contents.begin() + at, '\n')) +
              ": invalid UTF-8",
          "convert the file, e.g. `iconv -f LATIN1 -t UTF-8`, or have invalid bytes replaced by "
          "U+FFFD")
          .WithDetail(FoundInvalidUtf8{});
    }
    replaced = ReplaceInvalidUtf8(contents);
    contents = replaced;
  }

  TextTable table;
  table.path = path;
  const std::string extension = LowerExtension(path);
  if (extension == ".csv") {
    CsvReader(table, contents).Read();
  } else if (extension == ".tsv") {
    ReadTsv(table, contents);
  } else {
    ReadJsonLines(table, contents);
  }
  if (table.rows() == 0) {
    throw InvalidArgument(path + (table.names.empty() ? ": the file is empty"
                                                      : ": the file has a header but no rows"),
                          "write at least one row of data into the file");
  }
  return table;
}

TextTable ReadTextTable(const std::string& path, InvalidUtf8 invalid) {
  CheckExtension(path);
  return ParseTextTable(path, ReadFile(path), invalid);
}

TextColumns ChooseTextColumns(const TextTable& table, const std::vector<std::string>& named,
                              const std::string& label_column) {
  if (named.size() > 2) {
    throw InvalidArgument(table.path + ": expected one or two text columns but got " +
                          std::to_string(named.size()) + ": " + Join(named));
  }
  std::vector<std::string> chosen = named;
  if (chosen.empty() && table.has("sentence1") && table.has("sentence2")) {
    chosen = {"sentence1", "sentence2"};
  }
  for (size_t c = 0; named.empty() && c < table.names.size() && chosen.size() < 2; ++c) {
    const std::string& name = table.names[c];
    if (name != label_column && name != "idx" && name != "id" && !name.empty())
      chosen.push_back(name);
  }
  if (chosen.empty()) {
    throw InvalidArgument(table.path + ": no text column; it has: " + Join(table.names),
                          "name the text column");
  }
  for (const std::string& name : chosen) {
    const auto c = static_cast<size_t>(&table.column(name) - table.columns.data());
    if (c < table.first_array_lines.size() && table.first_array_lines[c] > 0) {
      throw InvalidArgument(At(table.path, table.first_array_lines[c]) + ": the value of " +
                                Quoted(name) + " is an array but must be a text",
                            "write it as one string or name another column");
    }
  }
  return {.first = chosen[0], .second = chosen.size() > 1 ? chosen[1] : ""};
}

}  // namespace lathe
