#include "lathe/data/table_files/csv_rows.h"

#include <algorithm>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

std::string At(const std::string& path, int64_t line) { return path + ":" + std::to_string(line); }

// Reads CSV in one pass, field by field. It counts lines itself, as a quoted field may span
// several.
class CsvReader {
 public:
  // `last` says that the file ends where the text does.
  CsvReader(const std::string& path, std::string_view text, int64_t line, bool last,
            const UseRow& use)
      : path_(path), rest_(text), line_(line), last_(last), use_(use) {}

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
    use_(fields, first_line);
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
        throw InvalidArgument(At(path_, first_line) + ": unterminated quote",
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
      throw InvalidArgument(At(path_, line_) + ": text after a closing quote",
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

  const std::string& path_;
  std::string_view rest_;
  int64_t line_;
  bool last_;
  const UseRow& use_;
};

}  // namespace

UnreadCsv ReadCsv(const std::string& path, std::string_view text, int64_t line, bool last,
                  const UseRow& use) {
  CsvReader reader(path, text, line, last, use);
  reader.Read();
  return {reader.rest(), reader.line()};
}

void ReadTsv(std::string_view rest, int64_t line_number, const UseRow& use) {
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
    use(fields, number);
  }
}

std::string_view TakeLine(std::string_view& rest) {
  size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace lathe
