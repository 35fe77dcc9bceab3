#include "lathe/data/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "lathe/data/tokenizers/unicode/unicode.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  size_t pos = end;
  return (begin > 0 && IsWordCharacter(DecodeUtf8Before(text, begin))) ||
         (end < text.size() && IsWordCharacter(DecodeUtf8(text, &pos)));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  // The trie keeps the last of equal contents, but the first one shall count.
  std::reverse(tokens_.begin(), tokens_.end());
  std::vector<std::pair<std::string_view, int32_t>> contents;
  for (const AddedToken& token : tokens_) {
    contents.emplace_back(token.content, static_cast<int32_t>(contents.size()));
    begins_[static_cast<unsigned char>(token.content.front())] = true;
  }
  trie_ = PieceTrie(std::move(contents));
}

const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text, size_t pos) const {
  if (!begins_[static_cast<unsigned char>(text[pos])]) {
    return nullptr;
  }
  int32_t longest = -1;
  for (uint32_t node = PieceTrie::kRoot; pos < text.size(); ++pos) {
    node = trie_.Child(node, static_cast<uint8_t>(text[pos]));
    if (node == PieceTrie::kRoot) {
      break;
    }
    if (trie_.id(node) >= 0) {
      longest = trie_.id(node);
    }
  }
  return longest < 0 ? nullptr : &tokens_[static_cast<size_t>(longest)];
}

void AddedTokenMatcher::Split(std::string_view text,
                              const std::function<void(std::string_view)>& on_text,
                              const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    const AddedToken* token = LongestAt(text, pos);
    if (token == nullptr) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    size_t end = pos + token->content.size();
    pos = end;
    if (token->single_word && TouchesWord(text, begin, end)) {
      continue;
    }
    if (token->lstrip) {
      begin = std::max(SkipWhitespaceBefore(text, begin, done), done);
    }
    if (token->rstrip) {
      end = SkipWhitespace(text, end);
    }
    if (done < begin) {
      on_text(text.substr(done, begin - done));
    }
    // White space that this token took may still hold the next one, as in `tokenizers`. A token
    // found there may have nothing left of its own; then it is dropped.
    if (begin < end) on_token(token->id);
    done = end;
  }
  if (done < text.size()) {
    on_text(text.substr(done));
  }
}

}  // namespace lathe
