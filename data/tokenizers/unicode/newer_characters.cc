#include "lathe/data/tokenizers/unicode/newer_characters.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <iterator>

#include "lathe/data/utf8.h"

namespace lathe {
namespace {

struct Range {
  char32_t first, last;
};

constexpr Range kLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D},
};

constexpr Range kNumbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
};

// These numbers are in Unicode 17, but not in 16.
constexpr Range kNumbersOfUnicode17[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

constexpr Range kWordCharacters[] = {
    {0x897, 0x897},     {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},
    {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85},
    {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2},
    {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0}, {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A},
    {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C}, {0x16D70, 0x16D79},
    {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9}, {0x1E5D0, 0x1E5FA}, {0x2EBF0, 0x2EE5D},
};

// The ranges are sorted.
template <size_t n>
bool In(const Range (&ranges)[n], char32_t c) {
  const auto after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                      [](char32_t x, const Range& r) { return x < r.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

// Returns an older character of the class of `c`, or 0 if `c` is no letter, number or mark that is
// newer than Unicode 14.
char32_t OlderCharacter(char32_t c) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  const uint32_t mask = age[0] == 15 ? U_GET_GC_MASK(static_cast<UChar32>(c)) : 0;
  const bool longest = c >= 0x10000;  // four bytes; all newer characters have three at least
  if (IsNewerLetter(c) || (mask & U_GC_L_MASK) != 0) {
    return longest ? 0x10000 : 0xA500;  // a syllable of Linear B, a syllable of Vai
  }
  if ((IsNewerNumber(c) || (mask & U_GC_N_MASK) != 0) && longest) {
    return 0x104A0;  // a digit of Osmanya
  }
  if (IsNewerWordCharacter(c) || (mask & U_GC_M_MASK) != 0) {
    return longest ? 0x10A01 : 0x816;  // a vowel sign of Kharoshthi, a mark of Samaritan
  }
  return 0;
}

// Returns an older mark of as many bytes, or 0 if `c` is not among these marks.
char32_t OlderMark(char32_t c) {
  const bool newer = c == 0x897 || (c >= 0x1ACF && c <= 0x1ADD) || (c >= 0x1AE0 && c <= 0x1AEB);
  return newer ? 0x1AB0 : 0;
}

// Replaces each character of three bytes or more for which `older` returns another one that is as
// long.
std::optional<std::string> Replaced(std::string_view text, char32_t (*older)(char32_t)) {
  std::optional<std::string> replaced;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (static_cast<unsigned char>(text[pos]) < 0xE0) {
      pos += Utf8SequenceLength(text[pos]);
      continue;
    }
    const char32_t c = older(DecodeUtf8(text, &pos));
    std::string bytes;
    AppendUtf8(c, &bytes);
    if (c != 0 && bytes.size() == pos - begin) {
      if (!replaced) replaced.emplace(text);
      replaced->replace(begin, bytes.size(), bytes);
    }
  }
  return replaced;
}

}  // namespace

std::optional<std::string> WithOlderCharacters(std::string_view text) {
  return Replaced(text, OlderCharacter);
}

std::optional<std::string> WithOlderMarks(std::string_view text) {
  return Replaced(text, OlderMark);
}

bool IsNewerLetter(char32_t c) { return In(kLetters, c); }
bool IsNewerNumber(char32_t c) { return In(kNumbers, c); }
bool IsNewerNumeric(char32_t c) { return In(kNumbers, c) || In(kNumbersOfUnicode17, c); }
bool IsNewerWordCharacter(char32_t c) { return In(kWordCharacters, c); }

char32_t NewerLowerCase(char32_t c) {
  switch (c) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    default:
      return c >= 0x10D50 && c <= 0x10D65 ? c + 0x20 : c >= 0x16EA0 && c <= 0x16EB8 ? c + 27 : 0;
  }
}

}  // namespace lathe
