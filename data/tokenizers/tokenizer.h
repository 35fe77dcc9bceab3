// Tokenizer: turns text into ids as Transformers' fast tokenizers do.
//
//   std::unique_ptr<Tokenizer> tokenizer = LoadTokenizer(dir);
//   Encoding e = tokenizer->Encode("hello world", "a second text", /*max_length=*/128);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lathe {

struct Encoding {
  std::vector<int32_t> input_ids;  // with special tokens
  // The same length: 0 for the first text and, if the model takes token types, 1 for the second.
  std::vector<int32_t> token_type_ids;
  bool truncated = false;  // tokens were cut off for max_length
};

// Thread-safe once constructed.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Encodes `text` and `pair`, which must be valid UTF-8 (the caller checks; see data/utf8.h). An
  // empty `pair` is no pair, as in Transformers. `max_length` counts special tokens; 0 means no
  // truncation. Otherwise it cuts tokens as the fast tokenizers' `longest_first` does: the last
  // ones of a text or, if the tokenizer's files say so (truncation_side), the first ones. Throws
  // InvalidArgument if `max_length` has no room for the special tokens.
  Encoding Encode(std::string_view text, std::optional<std::string_view> pair = std::nullopt,
                  int64_t max_length = 0) const;

  // Returns how many special tokens a text gets, or a pair of texts.
  int64_t NumSpecialTokens(bool pair) const;

  virtual int64_t vocab_size() const = 0;  // ids are in [0, vocab_size)
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;
  virtual std::string IdToToken(int32_t id) const = 0;  // throws if out of range
  // Returns true if the second text of a pair gets type 1 in the model's input.
  virtual bool makes_token_type_ids() const = 0;
  int64_t model_max_length() const { return model_max_length_; }  // 0: not set
  int32_t pad_token_id() const { return pad_token_id_; }
  // The file that the vocabulary was read from, for messages; may be empty.
  const std::string& vocab_file() const { return vocab_file_; }

  // Writes the tokenizer's own files into the existing folder `dir`: those it was loaded from, byte
  // for byte, or freshly made ones. Transformers' AutoTokenizer loads them to the same effect.
  virtual void SavePretrained(const std::string& dir) const = 0;
  // Returns the names and contents of the files that SavePretrained writes.
  virtual const std::map<std::string, std::string>& files() const = 0;

 protected:
  // One item of a template such as `[CLS] A [SEP] B [SEP]`.
  struct TemplateItem {
    enum class Kind { kSpecial, kFirst, kSecond };
    Kind kind;
    int32_t id = 0;  // of a special token
    int32_t type_id = 0;
  };

  // Returns the ids of one text, without special tokens.
  virtual std::vector<int32_t> EncodeText(std::string_view text) const = 0;

  std::vector<TemplateItem> single_template_, pair_template_;
  int64_t model_max_length_ = 0;
  bool truncates_left_ = false;  // the first tokens of a text are cut off, not the last ones
  int32_t pad_token_id_ = 0;
  std::string vocab_file_;
};

// Returns the lengths to which texts of `n1` and `n2` tokens are cut to have `budget` tokens
// together. It follows the fast tokenizers' longest_first: the longer text loses tokens first. If
// both are cut, the originally longer one keeps the odd token (the second one if they were equal).
std::pair<int64_t, int64_t> LongestFirst(int64_t n1, int64_t n2, int64_t budget);

// Reads the tokenizer in the folder `dir` from tokenizer.json, or else from vocab.txt,
// a SentencePiece model (such as spiece.model). Also reads tokenizer_config.json if it is there,
// and without "added_tokens_decoder" in it special_tokens_map.json and added_tokens.json.
// `model_type` (from config.json, may be empty) decides if the files don't. Throws NotFound or
// InvalidArgument, naming what was looked for and what is supported.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& dir,
                                         const std::string& model_type = "");

// Makes an ALBERT tokenizer from a SentencePiece unigram model. The model must have been trained
// with `<pad>`, `<unk>`, `[CLS]`, `[SEP]` and `[MASK]` as ids 0 to 4. A `model_max_length` of 0
// leaves it unset. Saving writes spiece.model, tokenizer.json and tokenizer_config.json. Throws
// NotFound or InvalidArgument if there is no such model.
std::unique_ptr<Tokenizer> AlbertTokenizerFromSentencePiece(const std::string& spm_file,
                                                            bool do_lower_case, bool keep_accents,
                                                            int64_t model_max_length);

}  // namespace lathe
