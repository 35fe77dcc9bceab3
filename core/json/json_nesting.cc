#include "lathe/core/json/json_nesting.h"

#include "lathe/core/base/error.h"

namespace lathe {

std::optional<JsonFlaw> FindJsonFlaw(std::string_view json) {
  constexpr int kMostLevels = 200;
  int levels = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++levels > kMostLevels) {
        return JsonFlaw{
            "the JSON is nested more than " + std::to_string(kMostLevels) + " levels deep",
            "check that this is the right file"};
      }
    } else if (c == ']' || c == '}') {
      --levels;
    } else if (c == '\0') {
      return JsonFlaw{"the JSON has a NUL at byte " + std::to_string(i + 1),
                      "the file may be damaged: take it from its source again"};
    }
  }
  return std::nullopt;
}

void CheckJsonNesting(std::string_view json, const std::string& where) {
  if (const auto flaw = FindJsonFlaw(json))
    throw InvalidArgument(where + ": " + flaw->problem, flaw->hint);
}

}  // namespace lathe
