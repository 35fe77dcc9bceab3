// The rows of CSV and TSV, as fields. Columns are the caller's matter.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Takes the fields of a row, which it may move from, and the line on which the row begins.
using UseRow = std::function<void(std::vector<std::string>& fields, int64_t line)>;

// Cuts the next line off `rest`, without its LF or CRLF.
std::string_view TakeLine(std::string_view& rest);

// What is still to be read, and the line on which it begins.
struct UnreadCsv {
  std::string_view rest;
  int64_t line = 1;
};

// Reads rows of CSV (RFC 4180): quotes, doubled quotes, line breaks inside quotes, LF or CRLF.
// `text` begins on `line`. `last` says that the file ends where the text does. Otherwise the last
// row may go on behind the text and is still to be read. Throws `path:line: what` for a broken
// quote.
UnreadCsv ReadCsv(const std::string& path, std::string_view text, int64_t line, bool last,
                  const UseRow& use);

// Reads whole lines, which begin on `line`, and splits them at tabs.
void ReadTsv(std::string_view text, int64_t line, const UseRow& use);

}  // namespace lathe
