// WordLevel: each word is one token, or the unknown token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

class WordLevel : public SubwordModel {
 public:
  // The vocabulary may lack the unknown token, as in the Rust library `tokenizers`.
  WordLevel(std::vector<std::string> tokens, std::string unk_token);

  // Throws InvalidArgument for a word that the vocabulary lacks if it lacks the unknown token, too.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::string unk_token_;
  std::optional<int32_t> unk_id_;
};

}  // namespace lathe
