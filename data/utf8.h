// UTF-8 for data files and tokenizers. Text is checked once where it comes in, and trusted
// afterwards.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lathe {

// Returns the byte offset of the first sequence that is not well-formed UTF-8, or
// std::string_view::npos if all of `text` is well-formed. Unicode 15, table 3-7, rules: no overlong
// forms, no surrogates, nothing above U+10FFFF.
size_t ValidateUtf8(std::string_view text);

// Returns `text` with every maximal ill-formed part replaced by U+FFFD, as Python's
// errors="replace" does.
std::string ReplaceInvalidUtf8(std::string_view text);

// Returns the code point that starts at `*pos`, and moves `*pos` past it. `text` must be valid and
// `*pos` below its size.
char32_t DecodeUtf8(std::string_view text, size_t* pos);

// Returns the code point that ends before `end`. `text` must be valid and `end` > 0.
char32_t DecodeUtf8Before(std::string_view text, size_t end);

void AppendUtf8(char32_t code_point, std::string* out);

// Returns the length in bytes of the sequence that `lead` opens in valid UTF-8.
inline size_t Utf8SequenceLength(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

bool IsAscii(std::string_view text);

}  // namespace lathe
