#include "lathe/train/card/yaml_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Only words that begin with a letter are plain, so that none is a number, a date or an indicator
// of YAML. What is left are the words of YAML 1.1 for booleans and nothing.
bool IsPlain(const std::string& text) {
  if (text.empty() || !IsLetter(text[0]) || text.back() == ' ') return false;
  const bool simple = std::ranges::all_of(text, [](char c) {
    return IsLetter(c) || (c >= '0' && c <= '9') ||
           std::string_view("_-./ ").find(c) != std::string_view::npos;
  });
  constexpr std::string_view kWords[] = {"y",     "n",  "yes", "no",  "true",
                                         "false", "on", "off", "null"};
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return IsLetter(c) ? static_cast<char>(c | 0x20) : c; });
  return simple && std::ranges::find(kWords, lower) == std::end(kWords);
}

// Characters that JSON lets stand in a text and YAML does not, or takes for the end of a line.
bool MustBeEscaped(uint32_t character) {
  return (character >= 0x7F && character <= 0x9F) || character == 0x2028 || character == 0x2029 ||
         character == 0xFEFF || character == 0xFFFE || character == 0xFFFF;
}

}  // namespace

std::string YamlText(const std::string& text) {
  if (IsPlain(text)) return text;
  // JSON's escapes are YAML's, too. What follows is valid UTF-8.
  const std::string json = DumpJson(nlohmann::json(text));
  std::string out;
  for (size_t i = 0; i < json.size();) {
    const auto first = static_cast<uint8_t>(json[i]);
    const size_t size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    uint32_t character = size == 1 ? first : first & (0xFF >> (size + 1));
    for (size_t k = 1; k < size; ++k)
      character = character << 6 | (static_cast<uint8_t>(json[i + k]) & 0x3F);
    if (MustBeEscaped(character)) {
      std::array<char, 16> escape;
      std::snprintf(escape.data(), escape.size(), "\\u%04X", static_cast<unsigned>(character));
      out += escape.data();
    } else {
      out.append(json, i, size);
    }
    i += size;
  }
  return out;
}

std::string YamlNumber(double number) {
  std::string text = DumpJson(nlohmann::json(number));
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos)
    text.insert(exponent, ".0");
  return text;
}

}  // namespace lathe
