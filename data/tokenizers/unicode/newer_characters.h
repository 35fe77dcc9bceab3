// Characters of Unicode 15.1 to 17, which ICU 72 doesn't know. The regular expressions of the Rust
// library `tokenizers` 0.23 know Unicode 16, and Rust's own character functions Unicode 17.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lathe {

bool IsNewerLetter(char32_t c);         // \p{L} of Unicode 16
bool IsNewerNumber(char32_t c);         // \p{N} of Unicode 16
bool IsNewerNumeric(char32_t c);        // char::is_numeric of Rust, Unicode 17
bool IsNewerWordCharacter(char32_t c);  // \w of Unicode 16
// Returns the lower-case letter of `c` in Unicode 17, or 0 if ICU's mapping is right.
char32_t NewerLowerCase(char32_t c);

// Returns `text` for regular expressions of Debian's Oniguruma, which knows Unicode 14. Each
// letter, number and mark of Unicode 15 and 16 is replaced by an older one that is as long in
// UTF-8. Returns nullopt if `text` has none of them.
std::optional<std::string> WithOlderCharacters(std::string_view text);

// Returns `text` for ICU's grapheme clusters. Replaces marks of Unicode 15.1 to 17 that can be in a
// cluster of fewer than six bytes. Older ones that are as long in UTF-8 take their places. Returns
// nullopt if `text` has none of them.
std::optional<std::string> WithOlderMarks(std::string_view text);

}  // namespace lathe
