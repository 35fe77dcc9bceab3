// TextSource: the texts that a command works on, from its arguments or from standard input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

class TextSource {
 public:
  // Without `texts`, each line of standard input is a text. `invalid_utf8` is "error" or "replace".
  TextSource(std::vector<std::string> texts, std::string invalid_utf8)
      : texts_(std::move(texts)), invalid_utf8_(std::move(invalid_utf8)) {}

  // Returns the next text, or nullopt at the end. Throws InvalidArgument if it is not UTF-8 and
  // must be.
  std::optional<std::string> Next();
  // Names the place of the latest text, such as "standard input:3".
  std::string Where() const;
  // Returns true if the next line is not there yet. Its writer may wait for our answer first.
  // Needs std::ios::sync_with_stdio(false).
  bool WouldWait() const;

 private:
  std::vector<std::string> texts_;
  std::string invalid_utf8_;
  int64_t count_ = 0;
};

// A text, or two.
struct TextPair {
  std::string_view first;
  std::optional<std::string_view> second = {};
};

// Splits a line at its first tab into two texts if `pairs` is set. Throws InvalidArgument, which
// names the place `where`, if the tab is missing.
TextPair SplitPair(std::string_view line, bool pairs, const std::string& where);

// Encodes a text, or two. Throws InvalidArgument, which names the place `where`, if the tokenizer
// refuses the text.
Encoding EncodeAt(const std::string& where, const Tokenizer& tokenizer, const TextPair& text,
                  int64_t max_length);

}  // namespace lathe
