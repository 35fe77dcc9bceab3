#include "lathe/data/datasets/text_table_reader.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/table_files/csv_rows.h"
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

// Returns what is wrong with a value that is no text; "" if it is one.
std::string ProblemOf(const std::string& key, const Json& value) {
  if (!value.is_null() && !value.is_object()) return "";
  return "the value of " + Quoted(key) + " is " + (value.is_null() ? "null" : "an object");
}

std::string LowerExtension(const std::string& path) {
  std::string extension = std::filesystem::path(WithoutCompression(path)).extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension;
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

// Called before the file is read: a wrong name should not cost reading gigabytes.
void CheckExtension(const std::string& path) {
  const std::string extension = LowerExtension(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw InvalidArgument(path + ": is a folder", "name a file in it, or a pattern such as *.csv");
  }
  if (extension != ".csv" && extension != ".tsv" && extension != ".json" && extension != ".jsonl") {
    throw InvalidArgument(path + ": unknown file extension " + Quoted(extension),
                          "name the file .csv, .tsv, .json or .jsonl, whichever format it has; .gz "
                          "or .zst may follow");
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

TextTableParser::TextTableParser(const std::string& path, InvalidUtf8 invalid)
    : invalid_(invalid), extension_(LowerExtension(path)) {
  table_.path = path;
}

size_t TextTableParser::LengthToParse(std::string_view text) {
  size_t begin = 0;
  if (!has_begun_) {
    if (kByteOrderMark.starts_with(text)) return 0;  // the rest of it may follow
    if (text.starts_with(kByteOrderMark)) begin = kByteOrderMark.size();
  }
  FindArray(text.substr(begin));
  if (!array_) return text.rfind('\n') + 1;
  const auto ascii = std::find_if(text.rbegin(), text.rend(),
                                  [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return static_cast<size_t>(text.rend() - ascii);
}

// Looks at the first character that is not blank, which tells an array from objects in lines.
void TextTableParser::FindArray(std::string_view text) {
  if (knows_form_) return;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return;
  knows_form_ = true;
  if (extension_ == ".json" && text[first] == '[') {
    array_.emplace(table_.path);
    array_->SkipLines(line_ - 1);
  }
}

void TextTableParser::Parse(std::string_view text, bool last) {
  if (!std::exchange(has_begun_, true) && text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());
  const size_t invalid = ValidateUtf8(text);
  if (invalid != std::string_view::npos && invalid_ == InvalidUtf8::kError)
    throw InvalidText(table_.path, text, invalid, next_line_);
  next_line_ += std::count(text.begin(), text.end(), '\n');
  std::string joined;
  if (invalid != std::string_view::npos) text = joined = ReplaceInvalidUtf8(text);
  if (!pending_.empty()) text = joined = pending_ + std::string(text);
  FindArray(text);
  const auto add_object = [&](const Json& object, int64_t line) { AddObject(object, line); };
  if (array_) {
    pending_ = std::string(array_->Read(text, last, add_object));
    return;
  }
  if (extension_ == ".csv") {
    const UnreadCsv unread = ReadCsv(
        table_.path, text, line_, last, [&](std::vector<std::string>& fields, int64_t line) {
          AddRow(table_, fields, line,
                 "put a field that contains a comma or a line break in double quotes");
        });
    line_ = unread.line;
    pending_ = std::string(unread.rest);
    return;
  }
  if (extension_ == ".tsv") {
    ReadTsv(text, line_, [&](std::vector<std::string>& fields, int64_t line) {
      AddRow(table_, fields, line,
             "a text must not contain tabs or line breaks in a .tsv; use .csv");
    });
  } else {
    ReadJsonLines(table_.path, text, line_, add_object);
  }
  line_ += std::count(text.begin(), text.end(), '\n');
}

TextTableParser::Kind TextTableParser::KindOf(const Json& value) {
  return value.is_null() ? Kind::kNull : value.is_structured() ? Kind::kNested : Kind::kText;
}

// Adds an object's values as a row. The first object names the columns.
void TextTableParser::AddObject(const nlohmann::ordered_json& object, int64_t line) {
  const int64_t element = array_ ? ++num_elements_ : 0;
  if (!std::exchange(named_, true)) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object.items()) names.push_back(key);
    if (names.empty())
      throw InvalidArgument(NameOfRow(table_.path, line, element) + ": the object has no keys",
                            "write at least one text into it");
    SetNames(table_, std::move(names), line);
    table_.first_array_lines.resize(table_.names.size());
    kinds_.resize(table_.names.size());
    first_line_ = line;
    first_element_ = element;
    for (const auto& [key, value] : object.items()) {
      if (value.is_object())
        nested_.insert_or_assign(key, UnusableValue{line, element, ProblemOf(key, value)});
    }
    table_.unusable = nested_;
  }
  const auto missing = [](const std::string& key) { return "key " + Quoted(key) + " is missing"; };
  size_t num_found = 0;
  for (size_t c = 0; c < table_.names.size(); ++c) {
    const std::string& key = table_.names[c];
    const auto value = object.find(key);
    const bool is_there = value != object.end();
    num_found += is_there ? 1 : 0;
    const std::string problem = is_there ? ProblemOf(key, *value) : missing(key);
    table_.columns[c].push_back(problem.empty() ? TextOf(*value) : "");
    if (!problem.empty()) table_.unusable.try_emplace(key, UnusableValue{line, element, problem});
    if (is_there && kinds_[c] == Kind::kNull) kinds_[c] = KindOf(*value);
    if (is_there && value->is_array() && table_.first_array_lines[c] == 0)
      table_.first_array_lines[c] = line;
  }
  if (object.size() > num_found) {
    for (const auto& [key, value] : object.items()) {
      if (std::ranges::find(table_.names, key) != table_.names.end()) continue;
      table_.unusable.try_emplace(key, UnusableValue{first_line_, first_element_, missing(key)});
      if (Kind& kind = more_kinds_[key]; kind == Kind::kNull) kind = KindOf(value);
    }
  }
  table_.lines.push_back(line);
  if (element > 0) table_.elements.push_back(element);
}

TextTable TextTableParser::TakeRows() {
  for (size_t c = 0; c < kinds_.size(); ++c) {
    if (kinds_[c] != Kind::kText) table_.without_text.insert(table_.names[c]);
  }
  for (const auto& [name, kind] : more_kinds_) {
    if (kind != Kind::kText) table_.without_text.insert(name);
  }
  TextTable rows = std::move(table_);
  table_ = {};
  table_.path = rows.path;
  table_.names = rows.names;
  table_.columns.resize(rows.names.size());
  table_.first_array_lines.resize(rows.first_array_lines.size());
  table_.unusable = nested_;
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
  internal::TextTableParser parser(path, invalid);
  parser.Parse(contents, /*last=*/true);
  TextTable table = parser.TakeRows();
  if (table.rows() == 0) parser.ThrowNoRows();
  return table;
}

TextTable ReadTextTable(const std::string& path, InvalidUtf8 invalid) {
  CheckExtension(path);
  return ParseTextTable(
      path, WithoutCompression(path) == path ? ReadFile(path) : TextStream(path).ReadAll(),
      invalid);
}

std::string TableFormat(const std::string& path) { return LowerExtension(path); }

TextTableReader::TextTableReader(const std::string& path, InvalidUtf8 invalid, int64_t block_bytes)
    : path_(path), block_bytes_(block_bytes), parser_(path, invalid) {
  CheckExtension(path);
  stream_.emplace(path);
}

TextTable TextTableReader::Next() {
  TextTable rows = parser_.TakeRows();
  while (!at_end_ && rows.rows() == 0) {
    ReadMore();
    const size_t end = at_end_ ? unparsed_.size() : parser_.LengthToParse(unparsed_);
    if (end == 0 && !at_end_) continue;
    parser_.Parse(std::string_view(unparsed_).substr(0, end), at_end_);
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
    const size_t got = stream_->Read(unparsed_.data() + size, unparsed_.size() - size);
    if (got == 0) {
      at_end_ = true;
      break;
    }
    size += got;
  }
  unparsed_.resize(size);
}

}  // namespace lathe
