// UTF-8 as the data files and tokenizers need it: checked once where text comes in, trusted
// afterwards.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lathe {

// Byte offset of the first sequence that is not well-formed UTF-8 (Unicode 15, table 3-7: no
// overlong forms, no surrogates, nothing above U+10FFFF), or std::string_view::npos if all of
// `text` is.
size_t ValidateUtf8(std::string_view text);

// `text` with every maximal ill-formed part replaced by U+FFFD, as Python's errors="replace" does
// it.
std::string ReplaceInvalidUtf8(std::string_view text);

// The code point that starts at `*pos`, which moves past it. `text` must be valid and `*pos` <
// size.
char32_t DecodeUtf8(std::string_view text, size_t* pos);

// The code point that ends before `end`; `text` must be valid and `end` > 0.
char32_t DecodeUtf8Before(std::string_view text, size_t end);

void AppendUtf8(char32_t code_point, std::string* out);

// Length in bytes of the sequence that `lead` opens in valid UTF-8.
inline size_t Utf8SequenceLength(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

bool IsAscii(std::string_view text);

}  // namespace lathe
