// PipelineTokenizer: the only Tokenizer of the library. It combines added tokens, a normalizer, a
// pre-tokenizer, a model and two templates, whichever files they came from.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/tokenizers/added_tokens.h"
#include "lathe/data/tokenizers/models/subword_model.h"
#include "lathe/data/tokenizers/normalizer.h"
#include "lathe/data/tokenizers/pre_tokenizer.h"
#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

class PipelineTokenizer : public Tokenizer {
 public:
  using Item = TemplateItem;
  using Template = std::vector<Item>;
  static Item Special(int32_t id, int32_t type_id) { return {Item::Kind::kSpecial, id, type_id}; }
  static Item First() { return {Item::Kind::kFirst, 0, 0}; }
  static Item Second(int32_t type_id) { return {Item::Kind::kSecond, 0, type_id}; }

  struct Templates {
    Template single, pair;
  };

  struct Parts {
    std::vector<AddedToken> added_tokens;
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    std::unique_ptr<SubwordModel> model;
    Templates templates;
    int64_t model_max_length = 0;
    bool truncates_left = false;
    int32_t pad_token_id = 0;
    bool makes_token_type_ids = false;
    std::string vocab_file;
    std::map<std::string, std::string> files;  // names and contents of what SavePretrained writes
  };
  explicit PipelineTokenizer(Parts parts);

  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> TokenToId(std::string_view token) const override;
  std::string IdToToken(int32_t id) const override;
  bool makes_token_type_ids() const override { return parts_.makes_token_type_ids; }
  void SavePretrained(const std::string& dir) const override;
  const std::map<std::string, std::string>& files() const override { return parts_.files; }

 protected:
  std::vector<int32_t> EncodeText(std::string_view text) const override;

 private:
  Parts parts_;
  AddedTokenMatcher raw_tokens_, normalized_tokens_;
  int64_t vocab_size_;
};

}  // namespace lathe
