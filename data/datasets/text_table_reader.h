// TextTableReader: a text file as tables of a few rows each, so that it may be larger than memory.
//
//   TextTableReader reader("train.csv");
//   for (TextTable rows = reader.Next(); rows.rows() > 0; rows = reader.Next()) ...
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/datasets/text_table.h"
#include "lathe/data/table_files/json_rows.h"
#include "lathe/data/table_files/text_stream.h"

namespace lathe {

namespace internal {

// Parses text that comes piece by piece.
class TextTableParser {
 public:
  TextTableParser(const std::string& path, InvalidUtf8 invalid);
  // Returns how much of the text can be parsed before more of it is there. It is whole lines, so
  // that no character is cut in two. Only of an array in JSON, which may be one line, it is all up
  // to the last ASCII character.
  size_t LengthToParse(std::string_view text);
  // Parses such a piece of text, or all that is left if it is the last.
  void Parse(std::string_view text, bool last);
  // Returns the rows that have been parsed since the last call.
  TextTable TakeRows();
  // Throws the error of a file that has no rows.
  [[noreturn]] void ThrowNoRows() const;

 private:
  void FindArray(std::string_view text);
  void AddObject(const nlohmann::ordered_json& object, int64_t line);

  InvalidUtf8 invalid_;
  std::string extension_;
  TextTable table_;
  std::string pending_;        // the beginning of a row whose end is still to come
  int64_t line_ = 1;           // on which the next row begins
  int64_t next_line_ = 1;      // on which the next piece begins
  bool has_begun_ = false;     // a piece was parsed
  bool named_ = false;         // a row of JSON has named the columns
  int64_t first_line_ = 0;     // of that row
  int64_t first_element_ = 0;  // the same
  std::map<std::string, UnusableValue> nested_;  // columns with an object in that row
  // What the values of a key are, by the first one that is not null.
  enum class Kind { kNull, kText, kNested };
  static Kind KindOf(const nlohmann::ordered_json& value);
  std::vector<Kind> kinds_;                 // of the columns; empty if the file is not in JSON
  std::map<std::string, Kind> more_kinds_;  // of keys that the first object lacks
  int64_t num_elements_ = 0;                // of an array in JSON, that have been read
  bool knows_form_ = false;                 // the next field is decided
  std::optional<JsonArrayReader> array_;    // set if the file is an array in JSON
};

}  // namespace internal

class TextTableReader {
 public:
  // Throws as ReadTextTable does, here or in Next. Reads about `block_bytes` at once.
  explicit TextTableReader(const std::string& path, InvalidUtf8 invalid = InvalidUtf8::kError,
                           int64_t block_bytes = int64_t{8} << 20);

  // Returns the next rows, with the lines on which they lie in the file. Returns none after the
  // last one. The rows are those of ReadTextTable. If a file has several errors, this may
  // find another one first, because it doesn't look at the whole file before it parses.
  TextTable Next();

 private:
  void ReadMore();

  std::string path_;
  int64_t block_bytes_;
  internal::TextTableParser parser_;
  std::optional<TextStream> stream_;
  std::string unparsed_;  // read, and not given to the parser yet
  bool at_end_ = false;
  int64_t num_rows_ = 0;
};

}  // namespace lathe
