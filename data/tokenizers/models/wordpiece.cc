#include "lathe/data/tokenizers/models/wordpiece.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/utf8.h"

namespace lathe {

WordPiece::WordPiece(std::vector<std::string> tokens, WordPieceOptions options)
    : vocabulary_(std::move(tokens)), options_(std::move(options)) {
  const std::string_view prefix = options_.continuing_subword_prefix;
  std::vector<std::pair<std::string_view, int32_t>> beginnings, continuations;
  for (const std::string_view token : vocabulary_.tokens()) {
    const int32_t id = static_cast<int32_t>(beginnings.size());
    beginnings.emplace_back(token, id);
    if (token.starts_with(prefix)) continuations.emplace_back(token.substr(prefix.size()), id);
  }
  beginnings_ = PieceTrie(std::move(beginnings));
  continuations_ = PieceTrie(std::move(continuations));
  const auto unk = vocabulary_.Find(options_.unk_token);
  if (!unk) {
    throw InvalidArgument("the vocabulary has no unknown token '" + options_.unk_token + "'",
                          "add it, or name the one it has as unk_token in tokenizer_config.json");
  }
  unk_id_ = *unk;
}

void WordPiece::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  if (std::ssize(word) > options_.max_input_chars_per_word &&
      std::count_if(word.begin(), word.end(), is_lead) > options_.max_input_chars_per_word) {
    ids->push_back(unk_id_);
    return;
  }
  if (word.empty()) return;
  if (const auto whole = vocabulary_.Find(word)) {  // true of most words
    ids->push_back(*whole);
    return;
  }
  const size_t num_before = ids->size();
  for (size_t begin = 0; begin < word.size();) {
    const PieceTrie& trie = begin == 0 ? beginnings_ : continuations_;
    int32_t longest = -1;
    size_t longest_end = begin;
    uint32_t node = PieceTrie::kRoot;
    for (size_t end = begin; end < word.size();) {
      node = trie.Child(node, static_cast<uint8_t>(word[end++]));
      if (node == PieceTrie::kRoot) break;
      if (trie.id(node) >= 0 && (end == word.size() || is_lead(word[end]))) {
        longest = trie.id(node);
        longest_end = end;
      }
    }
    if (longest < 0) {
      ids->resize(num_before);
      ids->push_back(unk_id_);
      return;
    }
    ids->push_back(longest);
    begin = longest_end;
  }
}

std::vector<std::string> ParseVocabTxt(const std::string& contents, const std::string& path) {
  std::vector<std::string> tokens;
  for (size_t begin = 0; begin < contents.size();) {
    const size_t newline = std::min(contents.find('\n', begin), contents.size());
    std::string_view line = std::string_view(contents).substr(begin, newline - begin);
    if (ValidateUtf8(line) != std::string_view::npos) {
      throw InvalidArgument(
          path + ":" + std::to_string(tokens.size() + 1) + ": the token is not valid UTF-8",
          "vocab.txt has one token a line, in UTF-8");
    }
    if (line.ends_with('\r')) {
      line.remove_suffix(1);  // the file has CR LF line ends
    }
    tokens.emplace_back(line);
    begin = newline + 1;
  }
  if (tokens.empty()) {
    throw InvalidArgument(path + ": the vocabulary is empty", "vocab.txt has one token a line");
  }
  return tokens;
}

}  // namespace lathe
