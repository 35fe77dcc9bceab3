#include "lathe/data/datasets/text_table_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/json_nesting.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

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

// Reads CSV in one pass, field by field. It counts lines itself, as a quoted field may span
// several.
class CsvReader {
 public:
  // `last` says that the file ends where the text does.
  CsvReader(TextTable& table, std::string_view text, int64_t line, bool last)
      : table_(table), rest_(text), line_(line), last_(last) {}

  void Read() {
    while (!rest_.empty()) {
      if (rest_.front() == '\n' || rest_.starts_with("\r\n")) {  // blank line
        TakeLine(rest_);
        ++line_;
        continue;
      }
      if (!ReadRow()) return;
    }
  }
  std::string_view rest() const { return rest_; }  // what is still to be read
  int64_t line() const { return line_; }           // the line on which it begins

 private:
  // Returns false if the row may go on behind the text. Then it is still to be read.
  bool ReadRow() {
    const std::string_view text = rest_;
    const int64_t first_line = line_;
    std::vector<std::string> fields;
    do {
      fields.push_back(rest_.starts_with('"') ? ReadQuoted() : ReadPlain());
    } while (TakeComma());
    if (rest_.empty() && !last_) {
      rest_ = text;
      line_ = first_line;
      return false;
    }
    AddRow(table_, fields, first_line,
           "put a field that contains a comma or a line break in double quotes");
    return true;
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
        if (!last_) {
          rest_ = {};
          return field;
        }
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
  int64_t line_;
  bool last_;
};

void ReadTsv(TextTable& table, std::string_view rest, int64_t line_number) {
  for (int64_t number = line_number; !rest.empty(); ++number) {
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

// `named` tells whether a row has named the columns, and is set by the first.
void ReadJsonLines(TextTable& table, std::string_view rest, int64_t line_number, bool& named) {
  for (int64_t number = line_number; !rest.empty(); ++number) {
    std::string_view line = TakeLine(rest);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json object = ParseObject(table.path, number, line);
    if (!std::exchange(named, true)) {
      std::vector<std::string> names;
      for (const auto& [key, value] : object.items()) names.push_back(key);
      if (names.empty())
        throw InvalidArgument(At(table.path, number) + ": the object has no keys",
                              "write at least one text into it");
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

// Returns the line of the first invalid byte at `at` in a text that begins on `line`.
Error InvalidText(const std::string& path, std::string_view text, size_t at, int64_t line) {
  return InvalidArgument(
             At(path,
                line + std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n')) +
                 ": invalid UTF-8",
             "convert the file, e.g. `iconv -f LATIN1 -t UTF-8`, or have invalid bytes replaced by "
             "U+FFFD")
      .WithDetail(FoundInvalidUtf8{});
}

}  // namespace

namespace internal {

void TextTableParser::Parse(std::string_view text, bool last) {
  const size_t invalid = ValidateUtf8(text);
  if (invalid != std::string_view::npos && invalid_ == InvalidUtf8::kError)
    throw InvalidText(table_.path, text, invalid, next_line_);
  next_line_ += std::count(text.begin(), text.end(), '\n');
  std::string joined;
  if (invalid != std::string_view::npos) text = joined = ReplaceInvalidUtf8(text);
  if (!pending_.empty()) text = joined = pending_ + std::string(text);
  const std::string extension = LowerExtension(table_.path);
  const int64_t lines = std::count(text.begin(), text.end(), '\n');
  if (extension == ".csv") {
    CsvReader reader(table_, text, line_, last);
    reader.Read();
    line_ = reader.line();
    pending_ = std::string(reader.rest());
    return;
  }
  if (extension == ".tsv") {
    ReadTsv(table_, text, line_);
  } else {
    ReadJsonLines(table_, text, line_, named_);
  }
  line_ += lines;
}

TextTable TextTableParser::TakeRows() {
  TextTable rows = std::move(table_);
  table_ = {};
  table_.path = rows.path;
  table_.names = rows.names;
  table_.columns.resize(rows.names.size());
  table_.first_array_lines.resize(rows.first_array_lines.size());
  return rows;
}

void TextTableParser::ThrowNoRows() const {
  throw InvalidArgument(
      table_.path +
          (table_.names.empty() ? ": the file is empty" : ": the file has a header but no rows"),
      "write at least one row of data into the file");
}

}  // namespace internal

TextTable ParseTextTable(const std::string& path, std::string_view contents, InvalidUtf8 invalid) {
  CheckExtension(path);
  if (contents.starts_with(kByteOrderMark)) contents.remove_prefix(kByteOrderMark.size());
  internal::TextTableParser parser(path, invalid);
  parser.Parse(contents, /*last=*/true);
  TextTable table = parser.TakeRows();
  if (table.rows() == 0) parser.ThrowNoRows();
  return table;
}

TextTable ReadTextTable(const std::string& path, InvalidUtf8 invalid) {
  CheckExtension(path);
  return ParseTextTable(path, ReadFile(path), invalid);
}

TextTableReader::TextTableReader(const std::string& path, InvalidUtf8 invalid, int64_t block_bytes)
    : path_(path), block_bytes_(block_bytes), parser_(path, invalid) {
  CheckExtension(path);
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw FileError(path, errno);
}

TextTableReader::~TextTableReader() {
  if (fd_ >= 0) close(fd_);
}

TextTable TextTableReader::Next() {
  TextTable rows = parser_.TakeRows();
  while (!at_end_ && rows.rows() == 0) {
    ReadMore();
    // Whole lines, so that no character is cut in two.
    const size_t end = at_end_ ? unparsed_.size() : unparsed_.rfind('\n') + 1;
    if (end == 0 && !at_end_) continue;
    std::string_view text(unparsed_.data(), end);
    if (!std::exchange(has_begun_, true) && text.starts_with(kByteOrderMark))
      text.remove_prefix(kByteOrderMark.size());
    parser_.Parse(text, at_end_);
    unparsed_.erase(0, end);
    rows = parser_.TakeRows();
  }
  if (rows.rows() == 0 && num_rows_ == 0) parser_.ThrowNoRows();
  num_rows_ += rows.rows();
  return rows;
}

void TextTableReader::ReadMore() {
  const size_t before = unparsed_.size();
  unparsed_.resize(before + static_cast<size_t>(block_bytes_));
  size_t size = before;
  while (size < unparsed_.size()) {
    const ssize_t got = read(fd_, unparsed_.data() + size, unparsed_.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path_, errno);
    if (got == 0) {
      at_end_ = true;
      break;
    }
    size += static_cast<size_t>(got);
  }
  unparsed_.resize(size);
}

}  // namespace lathe
