// Regular expressions in the syntax of the Oniguruma library, which the Rust library `tokenizers`
// uses for the patterns of a tokenizer.json.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lathe {

// Thread-safe once constructed. Letters, numbers and marks up to Unicode 16 are in their classes,
// as in `tokenizers`. Younger symbols are not: Debian's Oniguruma knows Unicode 14. [[:punct:]] has
// punctuation and symbols, as there.
class Regex {
 public:
  // Throws InvalidArgument if `pattern` is not a regular expression.
  explicit Regex(const std::string& pattern);

  // Calls `on_match` with the begin and end of each match, from left to right. An empty match
  // directly after another match doesn't count. Throws InvalidArgument if a search takes too many
  // steps. `text` must be valid UTF-8.
  void ForEachMatch(std::string_view text,
                    const std::function<void(size_t begin, size_t end)>& on_match) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lathe
