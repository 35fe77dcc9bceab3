// Unigram language model (Kudo 2018): finds the segmentation with the best sum of scores, as the
// Rust library `tokenizers` does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/data/tokenizers/models/piece_trie.h"
#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

class Unigram : public SubwordModel {
 public:
  // `pieces` holds tokens and their scores (log probabilities), in id order. Throws InvalidArgument
  // if `unk_id` is out of range.
  Unigram(std::vector<std::pair<std::string, double>> pieces, std::optional<int32_t> unk_id,
          bool byte_fallback = false);

  // Adjacent unknown characters become one unknown token. With byte_fallback they become tokens of
  // their bytes, such as <0xE2>, if the vocabulary has all of these. Without an unk_id an unknown
  // character is an error, InvalidArgument, even with byte_fallback.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::vector<double> scores_;
  PieceTrie trie_;
  std::vector<int32_t> byte_ids_;  // ids of <0x00> to <0xFF>, -1: none; empty: no byte_fallback
  double unk_score_ = 0;
  int32_t unk_id_;  // -1: none
};

}  // namespace lathe
