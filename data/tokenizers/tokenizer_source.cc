#include "lathe/data/tokenizers/tokenizer_source.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr char kTakeAgain[] = "take the file from the model's source again";

Json ParseFile(const std::string& path, const std::string& text) {
  CheckJsonNesting(text, path);
  try {
    return ParseJson(text);
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

// Reads all fields but `id` and `normalized`.
AddedToken ReadAddedToken(const Json& json) {
  AddedToken token;
  token.content = json.at("content").get<std::string>();
  token.single_word = json.value("single_word", false);
  token.lstrip = json.value("lstrip", false);
  token.rstrip = json.value("rstrip", false);
  return token;
}

// Returns what `tokenizers` reads where the file says `value`. Its library serde_json reads all
// digits as an integer and then multiplies by a power of ten or divides by it. Both steps round, so
// the last bit may differ from the nearest double's.
double AsTokenizersReads(double value) {
  char text[32];
  const std::to_chars_result all =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific);
  const char* const exponent_mark = std::find<const char*>(text, all.ptr, 'e');
  const std::string_view mantissa(text, static_cast<size_t>(exponent_mark - text));
  uint64_t digits = 0;
  int exponent = 0;
  for (size_t i = 0; i < mantissa.size(); ++i) {
    if (mantissa[i] >= '0' && mantissa[i] <= '9') {
      digits = 10 * digits + static_cast<uint64_t>(mantissa[i] - '0');
      exponent -= mantissa.find('.') < i ? 1 : 0;
    }
  }
  int written = 0;
  std::from_chars(exponent_mark + (exponent_mark[1] == '+' ? 2 : 1), all.ptr, written);
  exponent += written;
  if (std::abs(exponent) > 308) return value;
  const double power = std::strtod(("1e" + std::to_string(std::abs(exponent))).c_str(), nullptr);
  const double magnitude =
      exponent < 0 ? static_cast<double>(digits) / power : static_cast<double>(digits) * power;
  return value < 0 ? -magnitude : magnitude;
}

// Whether Transformers 5 saved the folder for a class that it knows. It reads the scores of such a
// tokenizer.json itself, to the nearest double. Everywhere else `tokenizers` reads them.
bool TransformersReadsScores(const TokenizerSource& source) {
  return source.family != nullptr && source.config.contains("backend");
}

// Gives the pieces of a unigram model the scores that `tokenizers` reads. Segmentations of the same
// score are told apart by them.
void RoundScores(Json* tokenizer_json) {
  const auto model = tokenizer_json->find("model");
  if (model == tokenizer_json->end() || !model->is_object() ||
      model->value("type", Json()) != Json("Unigram") || !model->contains("vocab")) {
    return;
  }
  for (Json& piece : (*model)["vocab"]) {
    if (piece.is_array() && piece.size() > 1 && piece[1].is_number_float()) {
      piece[1] = AsTokenizersReads(piece[1].get<double>());
    }
  }
}

// Returns an empty object if there is no such file.
Json ParseObject(const TokenizerSource& source, const char* name) {
  if (!source.Has(name)) return Json::object();
  Json object = ParseFile(source.Path(name), source.files.at(name));
  if (!object.is_object()) {
    throw InvalidArgument(source.Path(name) + ": must hold a JSON object", kTakeAgain);
  }
  return object;
}

// The texts of all special tokens that the configuration names.
std::set<std::string> SpecialTexts(const Json& config) {
  std::set<std::string> texts;
  const auto add = [&](const Json& token) {
    if (token.is_string()) texts.insert(token.get<std::string>());
    if (token.is_object() && token.contains("content"))
      texts.insert(token["content"].get<std::string>());
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    if (config.contains(key)) add(config[key]);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (config.contains(key) && config[key].is_array())
      std::for_each(config[key].begin(), config[key].end(), add);
  }
  return texts;
}

std::vector<AddedToken> ReadAddedTokensFile(const TokenizerSource& source) {
  constexpr char kName[] = "added_tokens.json";
  const std::set<std::string> special = SpecialTexts(source.config);
  const Json object = ParseObject(source, kName);
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [text, id] : object.items()) {
    if (text.empty()) continue;
    if (!id.is_number_integer()) {
      throw InvalidArgument(source.Path(kName) + ": \"" + text + "\" must be a token with its id",
                            kTakeAgain);
    }
    AddedToken token = {.content = text, .normalized = !special.contains(text)};
    if (!by_id.emplace(id.get<int64_t>(), std::move(token)).second) {
      throw InvalidArgument(
          source.Path(kName) + ": two tokens have the id " + std::to_string(id.get<int64_t>()),
          kTakeAgain);
    }
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

}  // namespace

AddedToken SpecialToken(const TokenizerSource& source, const char* key, const char* fallback) {
  const auto it = source.config.find(key);
  const bool missing = it == source.config.end() || it->is_null();
  if (!missing && !it->is_string()) {
    AddedToken token = ReadAddedToken(*it);
    token.normalized = it->value("normalized", false);
    return token;
  }
  AddedToken token;
  token.content = missing ? fallback : it->get<std::string>();
  token.lstrip = source.family->mask_lstrip && key == std::string_view("mask_token");
  return token;
}

AddedToken AddedTokenFromJson(const Json& json, int32_t id) {
  AddedToken token = ReadAddedToken(json);
  token.id = id;
  token.normalized = json.value("normalized", !json.value("special", false));
  return token;
}

TokenizerSource ReadTokenizerSource(const std::string& dir,
                                    std::map<std::string, std::string> files,
                                    const std::string& model_type) {
  TokenizerSource source;
  source.dir = dir;
  source.files = std::move(files);
  source.config = ParseObject(source, "tokenizer_config.json");
  if (!source.config.contains("added_tokens_decoder")) {
    source.config.update(ParseObject(source, "special_tokens_map.json"));
    source.added_tokens = ReadAddedTokensFile(source);
  }
  if (source.Has("tokenizer.json")) source.tokenizer_json = ParseObject(source, "tokenizer.json");
  std::string tokenizer_class = ConfigValue<std::string>(source.config, "tokenizer_class", "");
  // Both are names of the class that takes a tokenizer.json as it is.
  const bool generic =
      tokenizer_class == "PreTrainedTokenizerFast" || tokenizer_class == "TokenizersBackend";
  source.family = FindTokenizerFamily(generic ? "" : tokenizer_class, generic ? "" : model_type);
  if (source.family == nullptr && !tokenizer_class.empty() && !generic) {
    throw InvalidArgument(source.Path("tokenizer_config.json") + ": tokenizer_class '" +
                              tokenizer_class + "' is not supported",
                          SupportedTokenizers());
  }
  if (source.family == nullptr && source.tokenizer_json.is_null()) {
    // Without a configuration, only these files tell their family.
    source.family = source.Has("vocab.txt")      ? FindTokenizerFamily("", "bert")
                    : source.Has("merges.txt")   ? FindTokenizerFamily("", "roberta")
                    : source.Has("spiece.model") ? FindTokenizerFamily("", "albert")
                                                 : nullptr;
  }
  if (source.tokenizer_json.is_object() && !TransformersReadsScores(source)) {
    RoundScores(&source.tokenizer_json);
  }
  // Other families don't read this file; it may be left from another tokenizer.
  if (source.tokenizer_json.is_null() && source.family != nullptr && source.Has("vocab.json") &&
      source.family->kind == TokenizerFamily::kByteLevelBpe) {
    source.vocab_json = ParseFile(source.Path("vocab.json"), source.files["vocab.json"]);
  }
  return source;
}

}  // namespace lathe
