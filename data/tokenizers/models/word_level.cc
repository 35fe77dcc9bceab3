#include "lathe/data/tokenizers/models/word_level.h"

#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

// Returns the first characters of a word, which may be a whole text, for a message.
std::string Shortened(std::string_view word) {
  constexpr int kMostCharacters = 40;
  size_t end = 0;
  for (int i = 0; i < kMostCharacters && end < word.size(); ++i) {
    end += Utf8SequenceLength(word[end]);
  }
  return std::string(word.substr(0, end)) + (end < word.size() ? "..." : "");
}

}  // namespace

WordLevel::WordLevel(std::vector<std::string> tokens, std::string unk_token)
    : vocabulary_(std::move(tokens)),
      unk_token_(std::move(unk_token)),
      unk_id_(vocabulary_.Find(unk_token_)) {}

void WordLevel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  // Ids that the vocabulary leaves out have the empty token, which is no word.
  std::optional<int32_t> id = word.empty() ? std::nullopt : vocabulary_.Find(word);
  if (!id) id = unk_id_;
  if (!id) {
    throw InvalidArgument("the WordLevel model has neither '" + Shortened(word) +
                              "' nor its unk_token '" + unk_token_ + "' in the vocabulary",
                          "add the unk_token to the vocabulary, or take the word out");
  }
  ids->push_back(*id);
}

}  // namespace lathe
