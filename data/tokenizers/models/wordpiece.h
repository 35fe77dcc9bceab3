// WordPiece, BERT's model: greedy longest match from the left (Schuster and Nakajima 2012).
#pragma once

#include <string>
#include <vector>

#include "lathe/data/tokenizers/models/piece_trie.h"
#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;
};

class WordPiece : public SubwordModel {
 public:
  // Throws InvalidArgument if the vocabulary lacks the unknown token.
  explicit WordPiece(std::vector<std::string> tokens, WordPieceOptions options = {});

  // A word that is too long or cannot be covered becomes one unknown token.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  // The pieces that begin a word, and those that continue one, the latter without their prefix.
  PieceTrie beginnings_, continuations_;
  WordPieceOptions options_;
  int32_t unk_id_ = 0;
};

// Returns the tokens of a vocab.txt, one a line. A token's id is its line number from 0. Throws
// InvalidArgument `path:line: ...` for an empty file or a line that is not UTF-8.
std::vector<std::string> ParseVocabTxt(const std::string& contents, const std::string& path);

}  // namespace lathe
