// SubwordModel: the part of a tokenizer that turns words into ids. WordPiece, Bpe, Unigram,
// WordLevel and SentencePiece implement it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Maps ids to tokens and tokens to ids. If tokens are equal, the id of the last one counts.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(std::vector<std::string> tokens);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> Find(std::string_view token) const;
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Ids;  // a hash map, whose header takes long to compile
  std::vector<std::string> tokens_;
  std::shared_ptr<const Ids> ids_;
};

// Thread-safe once constructed.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  // Appends the ids of one word that the pre-tokenizer emitted.
  virtual void Encode(std::string_view word, std::vector<int32_t>* ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

}  // namespace lathe
