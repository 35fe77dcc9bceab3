#include "lathe/core/text/terminal_text.h"

namespace lathe {
namespace {

// Returns the number of bytes of the UTF-8 character at the text's begin, or 0 if there is none.
size_t CharacterSize(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer forms than needed, halves of pairs, and numbers above U+10FFFF are no UTF-8.
  const bool wrong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
                     (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f);
  return wrong ? 0 : size;
}

}  // namespace

std::string TerminalText(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterSize(text.substr(at));
    const auto first = static_cast<unsigned char>(text[at]);
    const bool is_control =
        (size == 1 && (first < 0x20 || first == 0x7f) && first != '\n' && first != '\t' &&
         first != '\r') ||
        (size == 2 && first == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0);
    if (size > 0 && !is_control) {
      result += text.substr(at, size);
      at += size;
      continue;
    }
    for (const size_t end = at + (size > 0 ? size : 1); at < end; ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return result;
}

}  // namespace lathe
