#include "lathe/data/table_files/json_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/data/table_files/csv_rows.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kArrayHint[] = "a .json file holds one array of objects, or one object a line";

std::string At(const std::string& path, int64_t line) { return path + ":" + std::to_string(line); }

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Returns the length of the object at the beginning of the text; npos if its end isn't there.
size_t LengthOfObject(std::string_view text) {
  int64_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// Parses an object that begins on `line`. nlohmann::json keeps the last of two equal keys, so this
// looks for repeated keys itself.
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
    const std::string_view before = text.substr(0, e.byte > 0 ? e.byte - 1 : 0);
    const size_t line_begin = before.rfind('\n') + 1;
    throw InvalidArgument(At(path, line + std::count(before.begin(), before.end(), '\n')) +
                              ": broken JSON at byte " + std::to_string(e.byte - line_begin),
                          "write one whole JSON object on each line, or an array of them");
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

}  // namespace

void ReadJsonLines(const std::string& path, std::string_view rest, int64_t line_number,
                   const UseObject& use) {
  for (int64_t number = line_number; !rest.empty(); ++number) {
    const std::string_view line = TakeLine(rest);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    use(ParseObject(path, number, line), number);
  }
}

std::string_view JsonArrayReader::Read(std::string_view text, bool last, const UseObject& use) {
  for (;;) {
    while (!text.empty() && IsSpace(text.front())) {
      line_ += text.front() == '\n';
      text.remove_prefix(1);
    }
    if (text.empty()) break;
    const char c = text.front();
    const bool may_end = wanted_ == Wanted::kFirstOrEnd || wanted_ == Wanted::kCommaOrEnd;
    if (c == '[' && wanted_ == Wanted::kArray) {
      wanted_ = Wanted::kFirstOrEnd;
    } else if (c == ']' && may_end) {
      wanted_ = Wanted::kNothing;
    } else if (c == ',' && wanted_ == Wanted::kCommaOrEnd) {
      wanted_ = Wanted::kObject;
    } else if (c == '{' && (wanted_ == Wanted::kFirstOrEnd || wanted_ == Wanted::kObject)) {
      const size_t length = LengthOfObject(text);
      if (length == std::string_view::npos) {
        if (!last) return text;
        throw InvalidArgument(At(path_, line_) + ": the object has no end", kArrayHint);
      }
      const std::string_view object = text.substr(0, length);
      use(ParseObject(path_, line_, object), line_);
      line_ += std::count(object.begin(), object.end(), '\n');
      text.remove_prefix(length);
      wanted_ = Wanted::kCommaOrEnd;
      continue;
    } else {
      ThrowUnexpected(text);
    }
    text.remove_prefix(1);
  }
  if (last && wanted_ != Wanted::kNothing)
    throw InvalidArgument(At(path_, line_) + ": the array has no end", kArrayHint);
  return text;
}

void JsonArrayReader::ThrowUnexpected(std::string_view rest) const {
  const char* const expected = wanted_ == Wanted::kCommaOrEnd ? "a comma or the array's end"
                               : wanted_ == Wanted::kNothing  ? "nothing behind the array"
                                                              : "an object of the array";
  const size_t length = static_cast<unsigned char>(rest.front()) < 0x80 ? 1 : 0;
  const std::string found = length == 1 ? " but got " + Quoted(rest.substr(0, 1)) : "";
  throw InvalidArgument(At(path_, line_) + ": expected " + expected + found, kArrayHint);
}

}  // namespace lathe
