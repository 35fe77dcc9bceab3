// Added tokens: special and other tokens that are cut out of a text whole, before the model sees
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/tokenizers/models/piece_trie.h"

namespace lathe {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // also takes the white space on its left
  bool rstrip = false;       // also takes the white space on its right
  bool normalized = false;   // searched for in the normalized text, not the raw one
};

// Finds added tokens in a text: the leftmost match first, and the longest of those that start at
// one place. Thread-safe once constructed.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Calls `on_text` for each piece of text between tokens (never an empty one) and `on_token` for
  // each token, in order.
  void Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  const AddedToken* LongestAt(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;
  PieceTrie trie_;         // of the contents; its ids are places in tokens_
  bool begins_[256] = {};  // whether a token begins with the byte
};

}  // namespace lathe
