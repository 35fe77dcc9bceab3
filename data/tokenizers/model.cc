#include "lathe/data/tokenizers/model.h"

#include <array>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/bpe_files.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/models/unigram.h"
#include "lathe/data/tokenizers/models/wordpiece.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Model = std::unique_ptr<SubwordModel>;

Model WordPieceFromJson(const Json& json) {
  WordPieceOptions options;
  options.unk_token = json.value("unk_token", "[UNK]");
  options.continuing_subword_prefix = json.value("continuing_subword_prefix", "##");
  options.max_input_chars_per_word = json.value("max_input_chars_per_word", int64_t{100});
  return std::make_unique<WordPiece>(TokensFromVocab(json.at("vocab")), options);
}

Model UnigramFromJson(const Json& json) {
  std::vector<std::pair<std::string, double>> pieces;
  for (const Json& piece : json.at("vocab")) {
    pieces.emplace_back(piece.at(0).get<std::string>(), piece.at(1).get<double>());
  }
  return std::make_unique<Unigram>(std::move(pieces), json.at("unk_id").get<int32_t>(),
                                   json.value("byte_fallback", false));
}

constexpr std::array kKinds = {
    Kind<Model>{"WordPiece", WordPieceFromJson},
    Kind<Model>{"BPE", BpeFromJson},
    Kind<Model>{"Unigram", UnigramFromJson},
};

}  // namespace

std::vector<std::string> TokensFromVocab(const Json& vocab) {
  constexpr int64_t kMaxTokens = 10'000'000;
  std::vector<std::string> tokens(vocab.size());
  for (const auto& [token, id_json] : vocab.items()) {
    const auto id = id_json.get<int64_t>();
    // Ids may have gaps, but an absurdly large one must not cause a huge allocation.
    Check(id >= 0 && id < kMaxTokens, "tokenizer", "the id of token '", token, "' must be in [0, ",
          kMaxTokens, ") but is ", id);
    if (id >= std::ssize(tokens)) {
      tokens.resize(id + 1);
    }
    tokens[id] = token;
  }
  return tokens;
}

Model SubwordModelFromJson(const Json& json, const std::string& path) {
  // Old WordPiece files have no type.
  const std::string type =
      json.value("type", json.contains("max_input_chars_per_word") ? "WordPiece" : "");
  return MakePart(path + ": model", kKinds, type, json);
}

std::string SubwordModelTypes() { return JoinNames(kKinds, &Kind<Model>::type, " or "); }

}  // namespace lathe
