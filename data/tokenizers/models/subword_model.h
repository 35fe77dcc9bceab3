// The model inside a tokenizer: words to ids. WordPiece, Unigram and SentencePiece implement it.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Tokens by id and ids by token. Of equal tokens the last one's id counts.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(std::vector<std::string> tokens);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> Find(std::string_view token) const;
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string, int32_t> ids_;
};

// Thread-safe once made.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  // Appends the ids of one word as the pre-tokenizer emitted it.
  virtual void Encode(std::string_view word, std::vector<int32_t>* ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

}  // namespace lathe
