#include "lathe/data/tokenizers/added_tokens.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "lathe/data/tokenizers/unicode/unicode.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

unsigned char FirstByte(const AddedToken& token) {
  return static_cast<unsigned char>(token.content.front());
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  size_t pos = end;
  return (begin > 0 && IsWordCharacter(DecodeUtf8Before(text, begin))) ||
         (end < text.size() && IsWordCharacter(DecodeUtf8(text, &pos)));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return std::tuple(FirstByte(a), b.content.size()) < std::tuple(FirstByte(b), a.content.size());
  });
  for (const AddedToken& token : tokens_) {
    ++first_[FirstByte(token) + 1];
  }
  for (int b = 0; b < 256; ++b) {
    first_[b + 1] += first_[b];
  }
}

const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text, size_t pos) const {
  const auto byte = static_cast<unsigned char>(text[pos]);
  for (uint32_t i = first_[byte]; i < first_[byte + 1]; ++i) {
    if (text.substr(pos).starts_with(tokens_[i].content)) {
      return &tokens_[i];
    }
  }
  return nullptr;
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
      begin = SkipWhitespaceBefore(text, begin, done);
    }
    if (token->rstrip) {
      end = SkipWhitespace(text, end);
    }
    if (done < begin) {
      on_text(text.substr(done, begin - done));
    }
    on_token(token->id);
    done = end;
    pos = std::max(pos, end);
  }
  if (done < text.size()) {
    on_text(text.substr(done));
  }
}

}  // namespace lathe
