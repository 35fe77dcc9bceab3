// GPT-2's way to cut and to write text: byte-level pre-tokenization, which RoBERTa and ModernBERT
// use.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lathe {

// Returns the end of the word that begins at `pos`, as GPT-2's pattern cuts text:
// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
// `text` must be valid UTF-8, and `pos` must be below its size.
size_t Gpt2WordEnd(std::string_view text, size_t pos);

// Appends each byte of `text` as a visible character: printable bytes of Latin-1 as themselves, the
// others as U+0100 and on. A space becomes "Ġ".
void AppendByteAlphabet(std::string_view text, std::string* out);

}  // namespace lathe
