#include "lathe/data/tokenizers/tokenizer_source.h"

#include <algorithm>
#include <array>

#include "lathe/core/error.h"
#include "lathe/core/json_nesting.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Family = TokenizerFamily;

constexpr std::array kFamilies = {
    Family{"bert", "BertTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]", "[PAD]",
           "[MASK]"},
    Family{"electra", "ElectraTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]",
           "[PAD]", "[MASK]"},
    Family{"distilbert", "DistilBertTokenizer", Family::kWordPiece, false, "[CLS]", "[SEP]",
           "[UNK]", "[PAD]", "[MASK]"},
    Family{"mpnet", "MPNetTokenizer", Family::kWordPiece, false, "<s>", "</s>", "[UNK]", "<pad>",
           "<mask>", true},
    Family{"albert", "AlbertTokenizer", Family::kSentencePiece, false, "[CLS]", "[SEP]", "<unk>",
           "<pad>", "[MASK]"},
    Family{"camembert", "CamembertTokenizer", Family::kSentencePiece, false, "<s>", "</s>", "<unk>",
           "<pad>", "<mask>", true},
    Family{"xlm-roberta", "XLMRobertaTokenizer", Family::kSentencePiece, false, "<s>", "</s>",
           "<unk>", "<pad>", "<mask>", true},
    Family{"deberta-v2", "DebertaV2Tokenizer", Family::kSentencePiece, true, "[CLS]", "[SEP]",
           "[UNK]", "[PAD]", "[MASK]"},
};

constexpr char kTakeAgain[] = "take the file from the model's source again";

Json ParseJson(const std::string& path, const std::string& text) {
  CheckJsonNesting(text, path);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const auto line =
        std::count(text.begin(), text.begin() + std::min(error.byte, text.size()), '\n') + 1;
    throw InvalidArgument(
        path + ":" + std::to_string(line) + ": not valid JSON: " + WithoutTag(error.what()),
        kTakeAgain);
  } catch (const Json::out_of_range& error) {
    throw InvalidArgument(path + ": " + WithoutTag(error.what()), kTakeAgain);
  }
}

}  // namespace

const char* const kSupportedTokenizers =
    "supported are the tokenizers of bert, electra, distilbert, mpnet, albert, camembert, "
    "xlm-roberta and "
    "deberta-v2, and a tokenizer.json with a WordPiece or Unigram model";

AddedToken SpecialToken(const TokenizerSource& source, const char* key, const char* fallback) {
  AddedToken token;
  token.content = fallback;
  const auto it = source.config.find(key);
  if (it == source.config.end() || it->is_null()) {
    token.lstrip = source.family->mask_lstrip && key == std::string_view("mask_token");
    return token;
  }
  if (it->is_string()) {
    token.content = it->get<std::string>();
    token.lstrip = source.family->mask_lstrip && key == std::string_view("mask_token");
    return token;
  }
  token.content = it->at("content").get<std::string>();
  token.single_word = it->value("single_word", false);
  token.lstrip = it->value("lstrip", false);
  token.rstrip = it->value("rstrip", false);
  token.normalized = it->value("normalized", false);
  return token;
}

AddedToken AddedTokenFromJson(const Json& json, int32_t id) {
  AddedToken token;
  token.id = id;
  token.content = json.at("content").get<std::string>();
  token.single_word = json.value("single_word", false);
  token.lstrip = json.value("lstrip", false);
  token.rstrip = json.value("rstrip", false);
  token.normalized = json.value("normalized", !json.value("special", false));
  return token;
}

const TokenizerFamily* FindTokenizerFamily(const std::string& tokenizer_class,
                                           const std::string& model_type) {
  std::string name = tokenizer_class;
  if (name.ends_with("Fast")) {
    name.resize(name.size() - 4);
  }
  for (const Family& family : kFamilies) {
    if (name.empty() ? model_type == family.model_type : name == family.tokenizer_class) {
      return &family;
    }
  }
  return nullptr;
}

TokenizerSource ReadTokenizerSource(const std::string& dir,
                                    std::map<std::string, std::string> files,
                                    const std::string& model_type) {
  TokenizerSource source;
  source.dir = dir;
  source.files = std::move(files);
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (source.Has(name)) {
      const Json config = ParseJson(source.Path(name), source.files[name]);
      if (!config.is_object()) {
        throw InvalidArgument(source.Path(name) + ": must hold a JSON object", kTakeAgain);
      }
      source.config.update(config);
    }
  }
  if (source.Has("tokenizer.json")) {
    source.json = ParseJson(source.Path("tokenizer.json"), source.files["tokenizer.json"]);
  }
  std::string tokenizer_class = ConfigValue<std::string>(source.config, "tokenizer_class", "");
  // Both are names of the class that takes a tokenizer.json as it is.
  const bool generic =
      tokenizer_class == "PreTrainedTokenizerFast" || tokenizer_class == "TokenizersBackend";
  source.family = FindTokenizerFamily(generic ? "" : tokenizer_class, generic ? "" : model_type);
  if (source.family == nullptr && !tokenizer_class.empty() && !generic) {
    throw InvalidArgument(source.Path("tokenizer_config.json") + ": tokenizer_class '" +
                              tokenizer_class + "' is not supported",
                          kSupportedTokenizers);
  }
  if (source.family == nullptr && source.json.is_null()) {
    // Without a configuration, only these two files tell their family.
    source.family = source.Has("vocab.txt")      ? FindTokenizerFamily("", "bert")
                    : source.Has("spiece.model") ? FindTokenizerFamily("", "albert")
                                                 : nullptr;
  }
  return source;
}

}  // namespace lathe
