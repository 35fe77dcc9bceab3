// Splits a text at a delimiter: what the pre-tokenizers Split, Punctuation and Digits do.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace lathe {

// Where the delimiters go. A text is cut into matches of the delimiter and the parts between them.
enum class SplitBehavior {
  kRemoved,             // matches are dropped
  kIsolated,            // each match is a word
  kMergedWithPrevious,  // a match ends the part before it
  kMergedWithNext,      // a match begins the part after it
  kContiguous,          // adjacent matches become one word
};

using OnMatch = std::function<void(size_t begin, size_t end)>;

// Cuts `text` and emits its words. `for_each_match` calls its argument for each delimiter, from
// left to right. With `invert`, the parts between delimiters count as delimiters.
void SplitText(std::string_view text, const std::function<void(const OnMatch&)>& for_each_match,
               SplitBehavior behavior, bool invert,
               const std::function<void(std::string_view)>& emit);

// Does the same with each character that `is_delimiter` accepts as a match.
void SplitAtCharacters(std::string_view text, bool (*is_delimiter)(char32_t c),
                       SplitBehavior behavior, const std::function<void(std::string_view)>& emit);

}  // namespace lathe
