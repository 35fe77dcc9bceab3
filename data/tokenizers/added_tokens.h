// Added tokens: special tokens and others that are cut out of a text before anything else sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;       // and on its right
  bool normalized = false;   // looked for in the normalized text, not the raw one
};

// Finds tokens in a text: leftmost match, of several at one place the longest. Thread-safe once
// made.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Calls `on_text` for each stretch between tokens (never an empty one) and `on_token` for each
  // token, in order.
  void Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  const AddedToken* LongestAt(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;  // by first byte, longest first
  uint32_t first_[257] = {};        // tokens_ from first_[b] to first_[b + 1] begin with byte b
};

}  // namespace lathe
