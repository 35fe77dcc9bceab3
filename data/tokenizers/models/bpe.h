// Byte-pair encoding (Sennrich et al. 2016): joins adjacent symbols by a ranked list of merges, as
// the Rust library `tokenizers` does. It knows characters; for byte-level BPE the pre-tokenizer has
// written the bytes as characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/data/tokenizers/models/subword_model.h"
#include "lathe/data/tokenizers/models/word_cache.h"

namespace lathe {

struct BpeOptions {
  std::optional<std::string> unk_token;   // without one, unknown characters are dropped
  std::string continuing_subword_prefix;  // precedes each symbol but a word's first one
  std::string end_of_word_suffix;         // follows a word's last symbol
  bool fuse_unk = false;                  // adjacent unknown characters become one token
  bool byte_fallback = false;  // an unknown character becomes tokens such as <0xE2>, if all exist
  bool ignore_merges = false;  // a word that is a token is not built by merges
};

// Looks up which symbol two adjacent symbols merge into. A hash table with linear probing.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = 0xFFFFFFFFu;
  struct Merge {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = kNoRank;  // merges of lower rank come first
    int32_t id = -1;          // of the merged symbol
  };

  // Makes room for so many merges.
  explicit MergeTable(size_t count = 0);
  // If the pair is in the table, replaces its merge.
  void Insert(int32_t left, int32_t right, uint32_t rank, int32_t id);
  // Returns the merge; its rank is kNoRank if there is none.
  const Merge& Find(int32_t left, int32_t right) const {
    const uint64_t pair = PairOf(left, right);
    size_t slot = Slot(pair);
    while (table_[slot].pair != pair && table_[slot].rank != kNoRank) {
      slot = (slot + 1) & mask_;
    }
    return table_[slot];
  }

 private:
  static uint64_t PairOf(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Slot(uint64_t pair) const { return pair * 0x9E3779B97F4A7C15u >> shift_; }

  std::vector<Merge> table_;
  size_t mask_;
  int shift_;
};

class Bpe : public SubwordModel {
 public:
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // `tokens` are in id order; earlier merges come first. Throws InvalidArgument if a merge's parts,
  // its result or the unknown token are not in the vocabulary.
  Bpe(std::vector<std::string> tokens, const Merges& merges, BpeOptions options = {});

  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  void EncodeUncached(std::string_view word, std::vector<int32_t>* ids) const;
  // Appends the symbols of the word's characters, before any merge.
  void AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const;
  // Returns the id of a character as a symbol, or -1.
  int32_t SymbolOf(std::string_view character, bool is_first, bool is_last) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  std::vector<int32_t> first_symbols_;  // ids of the characters below U+0800; -1: none
  std::vector<int32_t> byte_symbols_;   // ids of <0x00> to <0xFF>; -1: none
  int32_t unk_id_ = -1;
  WordCache cache_;
};

}  // namespace lathe
