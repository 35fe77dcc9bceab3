// Unigram language model (Kudo 2018): finds the segmentation with the best sum of scores, as the
// Rust library `tokenizers` does.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lathe/data/tokenizers/models/piece_trie.h"
#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

class Unigram : public SubwordModel {
 public:
  // `pieces` holds tokens and their scores (log probabilities), in id order. Throws InvalidArgument
  // if `unk_id` is out of range.
  Unigram(std::vector<std::pair<std::string, double>> pieces, int32_t unk_id);

  // Adjacent unknown characters become one unknown token.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::vector<double> scores_;
  PieceTrie trie_;
  double unk_score_ = 0;
  int32_t unk_id_;
};

}  // namespace lathe
