// Tokenizer: text to ids, as Transformers' fast tokenizers do it.
//
//   std::unique_ptr<Tokenizer> tokenizer = LoadTokenizer(dir);
//   Encoding e = tokenizer->Encode("hello world", "a second text", /*max_length=*/128);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lathe {

struct Encoding {
  std::vector<int32_t> input_ids;       // with special tokens
  std::vector<int32_t> token_type_ids;  // same length: 0 for the first text, 1 for the second where types exist
};

// Thread-safe once made.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // `text` must be valid UTF-8 (the caller checks; see data/utf8.h). max_length counts special tokens; 0 means
  // no truncation; otherwise `longest_first`, as the fast tokenizers cut (hf: the longer one, ties the second).
  Encoding Encode(std::string_view text, std::optional<std::string_view> pair = std::nullopt,
                  int64_t max_length = 0) const;

  virtual int64_t vocab_size() const = 0;                     // ids are in [0, vocab_size)
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;
  virtual std::string IdToToken(int32_t id) const = 0;        // throws when out of range
  virtual bool makes_token_type_ids() const = 0;              // whether pairs get type 1 in the model's input
  int64_t model_max_length() const { return model_max_length_; }  // 0: not set
  int32_t pad_token_id() const { return pad_token_id_; }

  // Writes the tokenizer's own files (those it was loaded from, byte for byte, or freshly made ones), so that
  // Transformers' AutoTokenizer loads the directory to the same effect.
  virtual void SavePretrained(const std::string& dir) const = 0;

 protected:
  // Ids of one text without special tokens.
  virtual std::vector<int32_t> EncodeText(std::string_view text) const = 0;
  // Special tokens: prefix A infix [B suffix]; see the cc file.
  std::vector<int32_t> prefix_, infix_, pair_infix_, suffix_;
  int64_t model_max_length_ = 0;
  int32_t pad_token_id_ = 0;
};

// Longest-first truncation of lengths (n1, n2) to a total of `budget`, as fast tokenizers do it.
std::pair<int64_t, int64_t> LongestFirst(int64_t n1, int64_t n2, int64_t budget);

// Reads the tokenizer in `dir` (tokenizer_config.json, vocab.txt, tokenizer.json, spiece.model,
// sentencepiece.bpe.model, special_tokens_map.json). `model_type` (from config.json, may be empty) decides where
// the files don't say. Throws NotFound/InvalidArgument, naming what is there and what is supported.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& dir, const std::string& model_type = "");

}  // namespace lathe
