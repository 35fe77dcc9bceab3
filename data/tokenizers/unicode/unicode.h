// Character classes and mappings of the Rust library `tokenizers`, made with ICU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lathe {

// Returns true for Unicode's White_Space, which is `char::is_whitespace` and the regex class `\s`
// of Rust.
bool IsWhitespace(char32_t c);
// Categories Cc, Cf and Co, except tab, line feed and carriage return. Unassigned characters (Cn)
// are not among them, whatever BERT's own code says.
bool IsBertControl(char32_t c);
// Returns true for ASCII 33-47, 58-64, 91-96, 123-126 or category P*.
bool IsPunctuation(char32_t c);
// Returns true for the characters that BERT treats as Chinese. The range 2B820-2B91F is missing, as
// it is in `tokenizers`.
bool IsCjk(char32_t c);
bool IsNonspacingMark(char32_t c);  // category Mn
bool IsMark(char32_t c);            // categories M*
bool IsWordCharacter(char32_t c);   // the regex class `\w`
bool IsLetter(char32_t c);          // the regex class `\p{L}`
bool IsNumber(char32_t c);          // the regex class `\p{N}`
bool IsNumeric(char32_t c);         // `char::is_numeric` of Rust: categories N*

// Returns a number for the character's script as the pre-tokenizer UnicodeScripts has it: kana and
// U+30FC count as Han. Returns kNoScript for a space and for characters younger than Unicode 9.
constexpr int32_t kNoScript = -1;
int32_t ScriptOf(char32_t c);

// Returns the end of the white space that begins at `pos`.
size_t SkipWhitespace(std::string_view text, size_t pos);
// Returns the start of the white space that ends at `end`, but no place before `limit`.
size_t SkipWhitespaceBefore(std::string_view text, size_t end, size_t limit);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };
std::string NormalizeUnicode(std::string_view text, NormalizationForm form);

// Replaces each character by its own full lower-case mapping, whatever stands around it: a final
// sigma becomes σ.
std::string LowerCase(std::string_view text);

}  // namespace lathe
