// The objects of a JSON file: one on each line, or all in one array.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lathe {

// Takes an object, and the line on which it begins.
using UseObject = std::function<void(const nlohmann::ordered_json& object, int64_t line)>;

// Reads whole lines, which begin on `line`. Each holds an object, or is blank. Throws `path:line:
// what` for anything else, and for an object with a key twice.
void ReadJsonLines(const std::string& path, std::string_view text, int64_t line,
                   const UseObject& use);

// Reads an array of objects that comes piece by piece.
class JsonArrayReader {
 public:
  explicit JsonArrayReader(std::string path) : path_(std::move(path)) {}

  // Moves on by so many lines, which lie before the array.
  void SkipLines(int64_t lines) { line_ += lines; }

  // Reads the objects that `text` holds as a whole. Returns what is still to be read: it must come
  // again, with more text behind it. `last` says that the file ends where the text does. Throws as
  // ReadJsonLines does, and for an array without an end.
  std::string_view Read(std::string_view text, bool last, const UseObject& use);

 private:
  enum class Wanted { kArray, kFirstOrEnd, kObject, kCommaOrEnd, kNothing };
  [[noreturn]] void ThrowUnexpected(std::string_view rest) const;

  std::string path_;
  int64_t line_ = 1;  // on which the text to come begins
  Wanted wanted_ = Wanted::kArray;
};

}  // namespace lathe
