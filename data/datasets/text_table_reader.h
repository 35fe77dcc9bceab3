// TextTableReader: a text file as tables of a few rows each, so that it may be larger than memory.
//
//   TextTableReader reader("train.csv");
//   for (TextTable rows = reader.Next(); rows.rows() > 0; rows = reader.Next()) ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lathe/data/datasets/text_table.h"

namespace lathe {

namespace internal {

// Parses text that comes piece by piece. A piece holds whole lines, unless it is the last.
class TextTableParser {
 public:
  TextTableParser(const std::string& path, InvalidUtf8 invalid) : invalid_(invalid) {
    table_.path = path;
  }
  void Parse(std::string_view text, bool last);
  // Returns the rows that have been parsed since the last call.
  TextTable TakeRows();
  // Throws the error of a file that has no rows.
  [[noreturn]] void ThrowNoRows() const;

 private:
  InvalidUtf8 invalid_;
  TextTable table_;
  std::string pending_;    // the beginning of a row of CSV whose end is still to come
  int64_t line_ = 1;       // on which the next row begins
  int64_t next_line_ = 1;  // on which the next piece begins
  bool named_ = false;     // a row of JSON has named the columns
};

}  // namespace internal

class TextTableReader {
 public:
  // Throws as ReadTextTable does, here or in Next. Reads about `block_bytes` at once.
  explicit TextTableReader(const std::string& path, InvalidUtf8 invalid = InvalidUtf8::kError,
                           int64_t block_bytes = int64_t{8} << 20);
  ~TextTableReader();
  TextTableReader(const TextTableReader&) = delete;
  TextTableReader& operator=(const TextTableReader&) = delete;

  // Returns the next rows, with the lines on which they lie in the file. Returns none after the
  // last one. The rows are those of ReadTextTable. Of several errors in a file this may find
  // another one first, because it doesn't look at the whole file before it parses.
  TextTable Next();

 private:
  void ReadMore();

  std::string path_;
  int64_t block_bytes_;
  internal::TextTableParser parser_;
  int fd_ = -1;
  std::string unparsed_;  // read, and not given to the parser yet
  bool has_begun_ = false, at_end_ = false;
  int64_t num_rows_ = 0;
};

}  // namespace lathe
