// Makes a PipelineTokenizer from a folder's files, as tokenizer_source.h has read them: its model,
// normalizer, special tokens and templates.
#include "lathe/data/tokenizers/load_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/core/file.h"
#include "lathe/data/tokenizers/models/sentencepiece_model.h"
#include "lathe/data/tokenizers/models/unigram.h"
#include "lathe/data/tokenizers/models/wordpiece.h"
#include "lathe/data/tokenizers/pipeline_tokenizer.h"
#include "lathe/data/tokenizers/tokenizer_source.h"
#include "lathe/data/tokenizers/unicode.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Parts = PipelineTokenizer::Parts;
using Files = std::map<std::string, std::string>;
using Family = TokenizerFamily;
using Source = TokenizerSource;

constexpr const char* kBrokenTokenizer =
    "take the tokenizer's files from the model's source again, or name another folder";

constexpr std::array kFileNames = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt",      "spiece.model",          "sentencepiece.bpe.model", "spm.model"};
// ---- Templates ----

// Sets the family's templates: `[CLS] A [SEP]` and the one for a pair of texts.
void SetFamilyTemplates(const Family& family, int32_t cls, int32_t sep, Parts* parts) {
  using P = PipelineTokenizer;
  parts->single_template = {P::Special(cls, 0), P::First(), P::Special(sep, 0)};
  parts->pair_template = parts->single_template;
  if (family.cls == std::string_view("<s>")) {
    parts->pair_template.push_back(P::Special(sep, 0));
    parts->pair_template.push_back(P::Second(0));
    parts->pair_template.push_back(P::Special(sep, 0));
  } else {
    parts->pair_template.push_back(P::Second(1));
    parts->pair_template.push_back(P::Special(sep, 1));
  }
}

PipelineTokenizer::Template TemplateFromJson(const Json& items, const Json& special_tokens) {
  using P = PipelineTokenizer;
  P::Template result;
  for (const Json& item : items) {
    if (item.contains("Sequence")) {
      const Json& sequence = item["Sequence"];
      P::Item place = sequence.at("id") == "A" ? P::First() : P::Second(0);
      place.type_id = sequence.value("type_id", 0);
      result.push_back(place);
      continue;
    }
    const Json& special = item.at("SpecialToken");
    for (const Json& id : special_tokens.at(special.at("id").get<std::string>()).at("ids")) {
      result.push_back(P::Special(id.get<int32_t>(), special.value("type_id", 0)));
    }
  }
  return result;
}

void SetTemplates(const Json& json, Parts* parts) {
  using P = PipelineTokenizer;
  if (json.is_null()) {
    parts->single_template = {P::First()};
    parts->pair_template = {P::First(), P::Second(1)};
    return;
  }
  const std::string type = json.at("type");
  if (type == "TemplateProcessing") {
    parts->single_template = TemplateFromJson(json.at("single"), json.at("special_tokens"));
    parts->pair_template = TemplateFromJson(json.at("pair"), json.at("special_tokens"));
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const int32_t cls = json.at("cls").at(1);
    const int32_t sep = json.at("sep").at(1);
    SetFamilyTemplates(*FindTokenizerFamily("", type == "BertProcessing" ? "bert" : "xlm-roberta"),
                       cls, sep, parts);
  } else {
    throw InvalidArgument("post_processor '" + type + "' is not supported",
                          "supported are TemplateProcessing, BertProcessing and RobertaProcessing");
  }
}

// ---- Models ----

std::vector<std::string> WordPieceTokens(const Json& vocab) {
  std::vector<std::string> tokens(vocab.size());
  for (const auto& [token, id_json] : vocab.items()) {
    const auto id = id_json.get<int64_t>();
    Check(id >= 0, "tokenizer", "token '", token, "' has id ", id);
    // Ids may have gaps, but an absurdly large one must not cause a huge allocation.
    Check(id < 10'000'000, "tokenizer", "token '", token, "' has id ", id);
    if (id >= std::ssize(tokens)) {
      tokens.resize(id + 1);
    }
    tokens[id] = token;
  }
  return tokens;
}

std::unique_ptr<SubwordModel> ModelFromJson(const Json& json, const Source& source) {
  // Old WordPiece files have no type.
  const std::string type =
      json.value("type", json.contains("max_input_chars_per_word") ? "WordPiece" : "");
  if (type == "WordPiece") {
    WordPieceOptions options;
    options.unk_token = json.value("unk_token", "[UNK]");
    options.continuing_subword_prefix = json.value("continuing_subword_prefix", "##");
    options.max_input_chars_per_word = json.value("max_input_chars_per_word", int64_t{100});
    return std::make_unique<WordPiece>(WordPieceTokens(json.at("vocab")), options);
  }
  if (type == "Unigram") {
    if (json.value("byte_fallback", false)) {
      throw InvalidArgument("model Unigram with byte_fallback is not supported");
    }
    std::vector<std::pair<std::string, double>> pieces;
    for (const Json& piece : json.at("vocab")) {
      pieces.emplace_back(piece.at(0).get<std::string>(), piece.at(1).get<double>());
    }
    return std::make_unique<Unigram>(std::move(pieces), json.at("unk_id").get<int32_t>());
  }
  throw InvalidArgument(source.Path("tokenizer.json") + ": model '" + type + "' is not supported",
                        kSupportedTokenizers);
}

BertNormalizerOptions BertOptions(const Source& source, bool lowercase_by_default) {
  BertNormalizerOptions options;
  options.lowercase = ConfigValue(source.config, "do_lower_case", lowercase_by_default);
  options.handle_chinese_chars = ConfigValue(source.config, "tokenize_chinese_chars", true);
  if (source.config.contains("strip_accents") && !source.config["strip_accents"].is_null()) {
    options.strip_accents = source.config["strip_accents"].get<bool>();
  }
  return options;
}

// ---- Tokens and the rest ----

// Adds the family's special tokens that are in the vocabulary but not among the added tokens yet.
void AddSpecialTokens(const Source& source, Parts* parts) {
  const Family& family = *source.family;
  const std::pair<const char*, const char*> keys[] = {{"cls_token", family.cls},
                                                      {"sep_token", family.sep},
                                                      {"unk_token", family.unk},
                                                      {"pad_token", family.pad},
                                                      {"mask_token", family.mask}};
  for (const auto& [key, fallback] : keys) {
    AddedToken token = SpecialToken(source, key, fallback);
    const bool known = std::any_of(parts->added_tokens.begin(), parts->added_tokens.end(),
                                   [&](const AddedToken& t) { return t.content == token.content; });
    const auto id = parts->model->vocabulary().Find(token.content);
    if (!known && id) {
      token.id = *id;
      parts->added_tokens.push_back(token);
    }
  }
}

std::optional<int32_t> FindToken(const Parts& parts, const std::string& content) {
  for (const AddedToken& token : parts.added_tokens) {
    if (token.content == content) {
      return token.id;
    }
  }
  return parts.model->vocabulary().Find(content);
}

// The added_tokens_decoder of tokenizer_config.json overrides tokenizer.json's entries for the same
// ids.
void AddConfiguredTokens(const Source& source, Parts* parts) {
  const auto it = source.config.find("added_tokens_decoder");
  if (it == source.config.end()) {
    return;
  }
  for (const auto& [key, value] : it->items()) {
    const AddedToken token = AddedTokenFromJson(value, std::stoi(key));
    std::erase_if(parts->added_tokens, [&](const AddedToken& t) { return t.id == token.id; });
    parts->added_tokens.push_back(token);
  }
}

void SetCommonParts(const Source& source, Parts* parts) {
  const auto length = source.config.find("model_max_length");
  // Transformers writes 1e30 for "not set".
  if (length != source.config.end() && length->is_number() && length->get<double>() < 1e9) {
    parts->model_max_length = length->get<int64_t>();
  }
  const char* pad = source.family != nullptr ? source.family->pad : "[PAD]";
  std::string pad_token = pad;
  if (const auto it = source.config.find("pad_token");
      it != source.config.end() && !it->is_null()) {
    pad_token = it->is_string() ? it->get<std::string>() : it->at("content").get<std::string>();
  }
  parts->pad_token_id = FindToken(*parts, pad_token).value_or(0);
  parts->makes_token_type_ids = source.family != nullptr && source.family->token_type_ids;
  if (const auto it = source.config.find("model_input_names"); it != source.config.end()) {
    parts->makes_token_type_ids = std::find(it->begin(), it->end(), "token_type_ids") != it->end();
  }
  parts->files = source.files;
}

int32_t RequireToken(const Source& source, const Parts& parts, const char* key,
                     const char* fallback) {
  const AddedToken token = SpecialToken(source, key, fallback);
  const auto id = FindToken(parts, token.content);
  if (!id) {
    throw InvalidArgument(
        source.dir + ": the vocabulary has no '" + token.content + "' (" + key + ")",
        std::string("add the token, or name another as ") + key + " in tokenizer_config.json");
  }
  return *id;
}

Parts FromTokenizerJson(const Source& source) {
  Parts parts;
  const Json& json = source.json;
  parts.vocab_file = source.Path("tokenizer.json");
  parts.model = ModelFromJson(json.at("model"), source);
  parts.normalizer = NormalizerFromJson(json.value("normalizer", Json()));
  parts.pre_tokenizer = PreTokenizerFromJson(json.value("pre_tokenizer", Json()));
  if (source.family != nullptr && source.family->kind == Family::kWordPiece) {
    // The classes of WordPiece families build their normalizer themselves, so the configuration
    // overrides tokenizer.json.
    parts.normalizer = MakeBertNormalizer(BertOptions(source, true));
    parts.pre_tokenizer = BertPreTokenize;
  }
  for (const Json& token : json.value("added_tokens", Json::array())) {
    parts.added_tokens.push_back(AddedTokenFromJson(token, token.at("id").get<int32_t>()));
  }
  AddConfiguredTokens(source, &parts);
  if (source.family != nullptr) {
    AddSpecialTokens(source, &parts);
  }
  SetTemplates(json.value("post_processor", Json()), &parts);
  return parts;
}

Parts FromVocabTxt(const Source& source) {
  Parts parts;
  parts.vocab_file = source.Path("vocab.txt");
  WordPieceOptions options;
  options.unk_token = SpecialToken(source, "unk_token", source.family->unk).content;
  try {
    parts.model = std::make_unique<WordPiece>(
        ParseVocabTxt(source.files.at("vocab.txt"), source.Path("vocab.txt")), options);
  } catch (const Error& error) {
    if (error.message().starts_with(source.dir)) {
      throw;
    }
    throw InvalidArgument(source.Path("vocab.txt") + ": " + error.message(), error.hint());
  }
  parts.normalizer = MakeBertNormalizer(BertOptions(source, true));
  parts.pre_tokenizer = BertPreTokenize;
  AddConfiguredTokens(source, &parts);
  AddSpecialTokens(source, &parts);
  SetFamilyTemplates(*source.family, RequireToken(source, parts, "cls_token", source.family->cls),
                     RequireToken(source, parts, "sep_token", source.family->sep), &parts);
  return parts;
}

// ALBERT's preprocessing before its SentencePiece model, step by step as in Transformers' slow
// tokenizer.
Normalizer AlbertPreprocess(bool do_lower_case, bool keep_accents) {
  const Normalizer quotes = MakeSequence({MakeReplace("``", "\""), MakeReplace("''", "\"")});
  return [=](std::string text) {
    text = quotes(StripWhitespace(text, true, true));
    if (!keep_accents) {
      text = StripAccents(NormalizeUnicode(text, NormalizationForm::kNfkd));
    }
    return do_lower_case ? LowerCase(text) : text;
  };
}

Parts FromSentencePiece(const Source& source, const std::string& name) {
  Parts parts;
  parts.vocab_file = source.Path(name);
  const std::string_view type = source.family->model_type;
  SentencePieceIds ids;
  if (type == "albert") {
    ids.unk_id = 1;
    ids.split_digit_comma = true;
  } else if (type == "camembert") {
    ids = {{"<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"}, 4, 3};
  } else if (type == "xlm-roberta") {
    ids = {{"<s>", "<pad>", "</s>", "<unk>"}, 1, 3};
  } else {
    ids.unk_id = 3;
  }
  parts.model = MakeSentencePieceModel(source.files.at(name), source.Path(name), ids);
  if (type == "albert") {
    parts.normalizer = AlbertPreprocess(ConfigValue(source.config, "do_lower_case", true),
                                        ConfigValue(source.config, "keep_accents", false));
  } else if (ConfigValue(source.config, "do_lower_case", false)) {
    parts.normalizer = [](std::string text) { return LowerCase(text); };
  } else {
    parts.normalizer = NormalizerFromJson(nullptr);
  }
  parts.pre_tokenizer = PreTokenizerFromJson(nullptr);
  AddConfiguredTokens(source, &parts);
  AddSpecialTokens(source, &parts);
  AddedToken mask = SpecialToken(source, "mask_token", source.family->mask);
  if (!FindToken(parts, mask.content)) {
    // The mask is not a piece of the model: it gets the first id after the model's.
    mask.id = static_cast<int32_t>(parts.model->vocabulary().size());
    parts.added_tokens.push_back(mask);
  }
  SetFamilyTemplates(*source.family, RequireToken(source, parts, "cls_token", source.family->cls),
                     RequireToken(source, parts, "sep_token", source.family->sep), &parts);
  return parts;
}

std::unique_ptr<Tokenizer> MakeTokenizer(const Source& source) {
  Parts parts;
  try {
    if (source.json.is_object()) {
      parts = FromTokenizerJson(source);
    } else if (source.family != nullptr && source.family->kind == Family::kWordPiece &&
               source.Has("vocab.txt")) {
      parts = FromVocabTxt(source);
    } else {
      const char* found = nullptr;
      for (const char* name : {"spiece.model", "sentencepiece.bpe.model", "spm.model"}) {
        if (found == nullptr && source.Has(name)) {
          found = name;
        }
      }
      if (found == nullptr || source.family == nullptr ||
          source.family->kind != Family::kSentencePiece) {
        std::string there;
        for (const auto& [name, contents] : source.files) {
          there += (there.empty() ? "" : ", ") + name;
        }
        throw NotFound(
            source.dir + ": no tokenizer" +
                (source.family ? std::string(" for ") + source.family->tokenizer_class : "") +
                ": looked for tokenizer.json, vocab.txt, spiece.model, sentencepiece.bpe.model and "
                "spm.model, found " +
                (there.empty() ? "none of their files" : there),
            kSupportedTokenizers);
      }
      parts = FromSentencePiece(source, found);
    }
    SetCommonParts(source, &parts);
  } catch (const Json::exception& error) {
    throw InvalidArgument(
        source.Path(source.json.is_null() ? "tokenizer_config.json" : "tokenizer.json") + ": " +
            WithoutTag(error.what()),
        kBrokenTokenizer);
  }
  // Writes down the class, which Transformers would otherwise have to guess from the folder.
  if (!source.Has("tokenizer_config.json") && source.family != nullptr) {
    parts.files["tokenizer_config.json"] =
        Json{{"tokenizer_class", source.family->tokenizer_class}}.dump(2) + "\n";
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& dir, const std::string& model_type) {
  Files files;
  for (const char* name : kFileNames) {
    const std::string path = dir + "/" + name;
    if (std::filesystem::exists(path)) {
      files[name] = ReadFile(path);
    }
  }
  return TokenizerFromFiles(dir, std::move(files), model_type);
}

std::unique_ptr<Tokenizer> TokenizerFromFiles(const std::string& dir,
                                              std::map<std::string, std::string> files,
                                              const std::string& model_type) {
  try {
    return MakeTokenizer(ReadTokenizerSource(dir, std::move(files), model_type));
  } catch (const Json::exception& error) {
    throw InvalidArgument(
        dir + ": a tokenizer file is not as expected: " + WithoutTag(error.what()),
        kBrokenTokenizer);
  }
}

}  // namespace lathe
