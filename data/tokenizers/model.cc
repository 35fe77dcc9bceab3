#include "lathe/data/tokenizers/model.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/bpe_files.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/models/unigram.h"
#include "lathe/data/tokenizers/models/word_level.h"
#include "lathe/data/tokenizers/models/wordpiece.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Model = std::unique_ptr<SubwordModel>;

Model WordPieceFromJson(const Json& json) {
  WordPieceOptions options;
  options.unk_token = json.value("unk_token", "[UNK]");
  options.continuing_subword_prefix = json.value("continuing_subword_prefix", "##");
  if (const auto most = json.find("max_input_chars_per_word"); most != json.end()) {
    options.max_input_chars_per_word =
        IntegerFromJson(*most, "max_input_chars_per_word", 0, std::numeric_limits<int64_t>::max());
  }
  return std::make_unique<WordPiece>(TokensFromVocab(json.at("vocab")), options);
}

Model UnigramFromJson(const Json& json) {
  std::vector<std::pair<std::string, double>> pieces;
  for (const Json& piece : json.at("vocab")) {
    pieces.emplace_back(piece.at(0).get<std::string>(), piece.at(1).get<double>());
  }
  std::optional<int32_t> unk_id;
  if (const Json id = json.value("unk_id", Json()); !id.is_null())
    unk_id = TokenIdFromJson(id, "unk_id");
  return std::make_unique<Unigram>(std::move(pieces), unk_id, json.value("byte_fallback", false));
}

Model WordLevelFromJson(const Json& json) {
  return std::make_unique<WordLevel>(TokensFromVocab(json.at("vocab")),
                                     json.at("unk_token").get<std::string>());
}

constexpr std::array kKinds = {
    Kind<Model>{"WordPiece", WordPieceFromJson},
    Kind<Model>{"BPE", BpeFromJson},
    Kind<Model>{"Unigram", UnigramFromJson},
    Kind<Model>{"WordLevel", WordLevelFromJson},
};

}  // namespace

int64_t IntegerFromJson(const Json& number, const std::string& what, int64_t low, int64_t high) {
  if (!number.is_number()) number.get<double>();  // throws, and says which type it has
  const std::optional<int64_t> integer = WholeNumber(number, low, high);
  Check(integer.has_value(), "tokenizer", what, " must be a whole number from ", low, " to ", high,
        " but is ", DumpJson(number));
  return *integer;
}

int32_t TokenIdFromJson(const Json& id, const std::string& token) {
  // Ids may have gaps, but an absurdly large one must not cause a huge allocation.
  constexpr int64_t kLargestId = 10'000'000 - 1;
  return static_cast<int32_t>(
      IntegerFromJson(id, "the id of token '" + token + "'", 0, kLargestId));
}

std::vector<std::string> TokensFromVocab(const Json& vocab) {
  Check(vocab.is_object(), "tokenizer",
        "the vocabulary must be an object of tokens and ids but is ", vocab.type_name());
  std::vector<std::string> tokens(vocab.size());
  for (const auto& [token, id_json] : vocab.items()) {
    const int32_t id = TokenIdFromJson(id_json, token);
    if (id >= std::ssize(tokens)) {
      tokens.resize(static_cast<size_t>(id) + 1);
    }
    tokens[id] = token;
  }
  return tokens;
}

namespace {

// Returns the type of a model in an old file, which names none, by the keys that only one has.
std::string TypeByKeys(const Json& json) {
  if (json.contains("merges")) return "BPE";
  if (!json.contains("vocab")) {
    throw InvalidArgument("has neither \"type\" nor \"vocab\"",
                          "Lathe supports " + SubwordModelTypes());
  }
  if (json["vocab"].is_array()) return "Unigram";
  return json.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

Model SubwordModelFromJson(const Json& json) {
  const auto type = json.find("type");
  return MakePart("model", kKinds, type != json.end() ? type->get<std::string>() : TypeByKeys(json),
                  json);
}

std::string SubwordModelTypes() { return JoinNames(kKinds, &Kind<Model>::type, " or "); }

}  // namespace lathe
