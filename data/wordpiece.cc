#include "lathe/data/wordpiece.h"

#include <algorithm>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/data/utf8.h"

namespace lathe {

WordPiece::WordPiece(std::vector<std::string> tokens, WordPieceOptions options)
    : vocabulary_(std::move(tokens)), options_(std::move(options)) {
  const std::string& prefix = options_.continuing_subword_prefix;
  for (const std::string& token : vocabulary_.tokens()) {
    longest_piece_ = std::max(longest_piece_, token.size());
    if (token.size() > prefix.size() && token.starts_with(prefix)) {
      continuations_[token.substr(prefix.size())] = *vocabulary_.Find(token);
    }
  }
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
  const size_t num_before = ids->size();
  for (size_t begin = 0; begin < word.size();) {
    size_t end = std::min(word.size(), begin + longest_piece_);
    std::optional<int32_t> id;
    for (; end > begin; --end) {
      if (end < word.size() && !is_lead(word[end])) {
        continue;
      }
      const std::string_view piece = word.substr(begin, end - begin);
      if (begin == 0) {
        id = vocabulary_.Find(piece);
      } else if (const auto it = continuations_.find(absl::string_view(piece.data(), piece.size()));
                 it != continuations_.end()) {
        id = it->second;
      }
      if (id) {
        break;
      }
    }
    if (!id) {
      ids->resize(num_before);
      ids->push_back(unk_id_);
      return;
    }
    ids->push_back(*id);
    begin = end;
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
      line.remove_suffix(1);  // a file with CR LF line ends
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
