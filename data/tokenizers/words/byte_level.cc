#include "lathe/data/tokenizers/words/byte_level.h"

#include <array>
#include <cstdint>

#include "lathe/data/tokenizers/unicode/unicode.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };

constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const int lower = c | 0x20;
    classes[c] = lower >= 'a' && lower <= 'z'           ? CharClass::kLetter
                 : c >= '0' && c <= '9'                 ? CharClass::kNumber
                 : c == ' ' || (c >= '\t' && c <= '\r') ? CharClass::kSpace
                                                        : CharClass::kOther;
  }
  return classes;
}();

// Returns the class of the character at `*pos`, and moves `*pos` past it.
inline CharClass NextClass(std::string_view text, size_t* pos) {
  const auto byte = static_cast<unsigned char>(text[*pos]);
  if (byte < 0x80) {
    ++*pos;
    return kAsciiClasses[byte];
  }
  const char32_t c = DecodeUtf8(text, pos);
  return IsLetter(c)       ? CharClass::kLetter
         : IsNumber(c)     ? CharClass::kNumber
         : IsWhitespace(c) ? CharClass::kSpace
                           : CharClass::kOther;
}

// Returns the length of the contraction at the start of `text`: 's, 't, 're, 've, 'm, 'll or 'd.
// Returns 0 if there is none.
size_t ContractionLength(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') {
    return 0;
  }
  const char first = text[1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return 2;
  }
  const char second = text.size() > 2 ? text[2] : '\0';
  const bool two =
      ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

// Returns the end of the run of white space that begins at `pos`. The last character of a longer
// run is left to what follows.
size_t WhitespaceEnd(std::string_view text, size_t pos) {
  size_t end = pos;
  size_t last = pos;  // where the run's last character begins
  while (end < text.size()) {
    size_t next = end;
    if (NextClass(text, &next) != CharClass::kSpace) {
      return last > pos ? last : end;
    }
    last = end;
    end = next;
  }
  return end;
}

// Each byte's character in UTF-8.
struct ByteCharacter {
  uint8_t size;
  char bytes[2];
};

constexpr std::array<ByteCharacter, 256> kByteAlphabet = [] {
  std::array<ByteCharacter, 256> alphabet{};
  int num_shifted = 0;
  for (int b = 0; b < 256; ++b) {
    const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    const int c = visible ? b : 0x100 + num_shifted++;
    if (c < 0x80) {
      alphabet[b] = {1, {static_cast<char>(c), 0}};
    } else {
      alphabet[b] = {2, {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))}};
    }
  }
  return alphabet;
}();

}  // namespace

size_t Gpt2WordEnd(std::string_view text, size_t pos) {
  if (const size_t length = ContractionLength(text.substr(pos)); length > 0) {
    return pos + length;
  }
  size_t end = pos;
  CharClass run = NextClass(text, &end);
  if (run == CharClass::kSpace) {
    size_t next = end;
    if (text[pos] != ' ' || end == text.size() ||
        (run = NextClass(text, &next)) == CharClass::kSpace) {
      return WhitespaceEnd(text, pos);
    }
    end = next;
  }
  while (end < text.size()) {
    size_t next = end;
    if (NextClass(text, &next) != run) {
      break;
    }
    end = next;
  }
  return end;
}

void AppendByteAlphabet(std::string_view text, std::string* out) {
  const size_t before = out->size();
  out->resize(before + 2 * text.size());
  char* to = out->data() + before;
  for (const char c : text) {
    const ByteCharacter& character = kByteAlphabet[static_cast<unsigned char>(c)];
    to[0] = character.bytes[0];
    to[1] = character.bytes[1];
    to += character.size;
  }
  out->resize(static_cast<size_t>(to - out->data()));
}

}  // namespace lathe
