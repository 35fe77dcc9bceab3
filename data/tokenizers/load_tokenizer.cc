// Makes a PipelineTokenizer from a folder's files, as tokenizer_source.h has read them: its model,
// normalizer, special tokens and templates.
#include "lathe/data/tokenizers/load_tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/bpe_files.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/model.h"
#include "lathe/data/tokenizers/models/sentencepiece_model.h"
#include "lathe/data/tokenizers/models/wordpiece.h"
#include "lathe/data/tokenizers/pipeline_tokenizer.h"
#include "lathe/data/tokenizers/post_processor.h"
#include "lathe/data/tokenizers/tokenizer_source.h"
#include "lathe/data/tokenizers/unicode/charsmap.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Parts = PipelineTokenizer::Parts;
using Files = std::map<std::string, std::string>;
using Family = TokenizerFamily;
using Source = TokenizerSource;

constexpr const char* kBrokenTokenizer =
    "take the tokenizer's files from the model's source again, or name another folder";

constexpr std::array kSentencePieceNames = {"spiece.model", "sentencepiece.bpe.model", "spm.model",
                                            "sentencepiece.model"};
constexpr std::array kOtherNames = {"tokenizer.json", "tokenizer_config.json",
                                    "special_tokens_map.json", "added_tokens.json", "vocab.txt"};
constexpr std::array kByteLevelBpeNames = {"vocab.json", "merges.txt"};

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

// The first id that no token has, nor any before it.
int32_t NextId(const Parts& parts) {
  auto next = static_cast<int32_t>(parts.model->vocabulary().size());
  for (const AddedToken& token : parts.added_tokens) next = std::max(next, token.id + 1);
  return next;
}

// Adds the tokens of added_tokens.json. Those that are no pieces of the vocabulary get the ids
// behind it. The added_tokens_decoder of tokenizer_config.json overrides tokenizer.json's entries
// for the same ids.
void AddConfiguredTokens(const Source& source, Parts* parts) {
  for (AddedToken token : source.added_tokens) {
    const bool known = std::any_of(parts->added_tokens.begin(), parts->added_tokens.end(),
                                   [&](const AddedToken& t) { return t.content == token.content; });
    if (known) continue;  // tokenizer.json says more about it
    token.id = parts->model->vocabulary().Find(token.content).value_or(NextId(*parts));
    parts->added_tokens.push_back(std::move(token));
  }
  const auto it = source.config.find("added_tokens_decoder");
  if (it == source.config.end()) {
    return;
  }
  for (const auto& [key, value] : it->items()) {
    int32_t id = -1;
    const char* const end = key.data() + key.size();
    const auto [stop, code] = std::from_chars(key.data(), end, id);
    if (code != std::errc{} || stop != end || id < 0) {
      throw InvalidArgument(source.Path("tokenizer_config.json") + ": added_tokens_decoder has '" +
                                key + "' where an id must be",
                            kBrokenTokenizer);
    }
    const AddedToken token = AddedTokenFromJson(value, TokenIdFromJson(id, key));
    std::erase_if(parts->added_tokens, [&](const AddedToken& t) { return t.id == token.id; });
    parts->added_tokens.push_back(token);
  }
}

void SetCommonParts(const Source& source, Parts* parts) {
  const auto length = source.config.find("model_max_length");
  // Transformers writes 1e30 for "not set".
  if (length != source.config.end() && length->is_number() && length->get<double>() > 0 &&
      length->get<double>() < 1e9) {
    parts->model_max_length = length->get<int64_t>();
  }
  if (const auto it = source.config.find("truncation_side"); it != source.config.end()) {
    const Json& side = *it;
    if (side != "left" && side != "right") {
      throw InvalidArgument(source.Path("tokenizer_config.json") +
                                ": truncation_side must be \"left\" or \"right\" but is " +
                                DumpJson(side),
                            kBrokenTokenizer);
    }
    parts->truncates_left = side == "left";
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

// The classes of WordPiece families take these parts from the configuration.
void SetWordPieceParts(const Source& source, Parts* parts) {
  parts->normalizer = NormalizerFromJson(source.family->normalizer(source.config));
  parts->pre_tokenizer = PreTokenizerFromJson(Json{{"type", "BertPreTokenizer"}});
}

// RoBERTa's class takes add_prefix_space from the configuration, whatever tokenizer.json says.
void SetByteLevelParts(const Source& source, Parts* parts) {
  parts->pre_tokenizer = PreTokenizerFromJson(
      Json{{"type", "ByteLevel"},
           {"add_prefix_space", ConfigValue(source.config, "add_prefix_space", false)}});
}

void SetFamilyTemplates(const Source& source, Parts* parts) {
  const Family& family = *source.family;
  const int32_t cls = RequireToken(source, *parts, "cls_token", family.cls);
  const int32_t sep = RequireToken(source, *parts, "sep_token", family.sep);
  parts->templates = family.templates(cls, sep);
}

// Calls `read`. An error names the file and the part of tokenizer.json then.
template <typename Read>
auto ReadPart(const Source& source, const std::string& part, const Read& read) {
  const auto in_file = [&](const std::string& message, const std::string& hint) {
    return InvalidArgument(source.Path("tokenizer.json") + ": " + message,
                           hint.empty() ? kBrokenTokenizer : hint);
  };
  try {
    return read();
  } catch (const Json::exception& error) {
    throw in_file(part + ": " + WithoutTag(error.what()), "");
  } catch (const Error& error) {
    const bool names_part = error.detail<AboutPart>() != nullptr;
    throw in_file((names_part ? "" : part + ": ") + WithoutTag(error.message()), error.hint());
  }
}

Parts FromTokenizerJson(const Source& source) {
  Parts parts;
  const Json& json = source.tokenizer_json;
  parts.vocab_file = source.Path("tokenizer.json");
  parts.model = ReadPart(source, "model", [&] { return SubwordModelFromJson(json.at("model")); });
  parts.normalizer = ReadPart(source, "normalizer",
                              [&] { return NormalizerFromJson(json.value("normalizer", Json())); });
  parts.pre_tokenizer = ReadPart(source, "pre_tokenizer", [&] {
    return PreTokenizerFromJson(json.value("pre_tokenizer", Json()));
  });
  if (source.family != nullptr && source.family->kind == Family::kWordPiece) {
    // The classes of WordPiece families build their normalizer themselves, so the configuration
    // overrides tokenizer.json.
    SetWordPieceParts(source, &parts);
  }
  if (source.family != nullptr && source.family->kind == Family::kByteLevelBpe) {
    SetByteLevelParts(source, &parts);
  }
  ReadPart(source, "added_tokens", [&] {
    for (const Json& token : json.value("added_tokens", Json::array())) {
      const std::string content = token.at("content").get<std::string>();
      parts.added_tokens.push_back(
          AddedTokenFromJson(token, TokenIdFromJson(token.at("id"), content)));
    }
  });
  // Transformers' classes take the side of a saved truncation, and nothing else of it.
  parts.truncates_left = ReadPart(source, "truncation", [&] {
    const Json truncation = json.value("truncation", Json());
    return !truncation.is_null() && truncation.value("direction", "Right") == "Left";
  });
  AddConfiguredTokens(source, &parts);
  if (source.family != nullptr) {
    AddSpecialTokens(source, &parts);
  }
  parts.templates = ReadPart(source, "post_processor", [&] {
    return PostProcessorFromJson(json.value("post_processor", Json()));
  });
  const PipelineTokenizer::Template& single = parts.templates.single;
  const bool adds_tokens = std::any_of(single.begin(), single.end(), [](const auto& item) {
    return item.kind == PipelineTokenizer::Item::Kind::kSpecial;
  });
  // The classes add special tokens themselves. Transformers 5 saves RemBERT's file without them.
  if (!adds_tokens && source.family != nullptr) {
    SetFamilyTemplates(source, &parts);
  }
  return parts;
}

Parts FromVocabTxt(const Source& source) {
  Parts parts;
  parts.vocab_file = source.Path("vocab.txt");
  WordPieceOptions options;
  options.unk_token = SpecialToken(source, "unk_token", source.family->unk).content;
  std::vector<std::string> tokens = ParseVocabTxt(source.files.at("vocab.txt"), parts.vocab_file);
  try {
    parts.model = std::make_unique<WordPiece>(std::move(tokens), options);
  } catch (const Error& error) {
    throw InvalidArgument(parts.vocab_file + ": " + error.message(), error.hint());
  }
  SetWordPieceParts(source, &parts);
  AddConfiguredTokens(source, &parts);
  AddSpecialTokens(source, &parts);
  SetFamilyTemplates(source, &parts);
  return parts;
}

Parts FromVocabJson(const Source& source) {
  Parts parts;
  parts.vocab_file = source.Path("vocab.json");
  if (!source.Has("merges.txt")) {
    throw NotFound(source.Path("merges.txt") + ": no such file",
                   "copy it from the model's source; vocab.json needs its merges");
  }
  parts.model = BpeFromFiles(source.vocab_json, parts.vocab_file, source.files.at("merges.txt"),
                             source.Path("merges.txt"));
  parts.normalizer = NormalizerFromJson(source.family->normalizer(source.config));
  SetByteLevelParts(source, &parts);
  AddConfiguredTokens(source, &parts);
  AddSpecialTokens(source, &parts);
  SetFamilyTemplates(source, &parts);
  return parts;
}

// The library trusts the map of characters in its model, and would read outside of a damaged one.
void CheckCharsmap(const std::string& bytes, const std::string& path) {
  const std::string map = ParseSentencePieceModel(bytes, path).precompiled_charsmap;
  try {
    if (!map.empty()) Charsmap(map).CheckTrie();
  } catch (const Error& error) {
    throw InvalidArgument(path + ": " + error.message(), kBrokenTokenizer);
  }
}

Parts FromSentencePiece(const Source& source, const std::string& name) {
  Parts parts;
  parts.vocab_file = source.Path(name);
  CheckCharsmap(source.files.at(name), parts.vocab_file);
  parts.model =
      MakeSentencePieceModel(source.files.at(name), source.Path(name), source.family->ids);
  parts.normalizer = NormalizerFromJson(source.family->normalizer(source.config));
  // DeBERTa's class may make a word of each punctuation character.
  const bool split_by_punct = ConfigValue(source.config, "split_by_punct", false);
  parts.pre_tokenizer =
      PreTokenizerFromJson(split_by_punct ? Json{{"type", "Punctuation"}} : Json());
  AddConfiguredTokens(source, &parts);
  AddSpecialTokens(source, &parts);
  AddedToken mask = SpecialToken(source, "mask_token", source.family->mask);
  if (!FindToken(parts, mask.content)) {
    // The mask is not a piece of the model: it gets the first id after the model's.
    mask.id = static_cast<int32_t>(parts.model->vocabulary().size());
    parts.added_tokens.push_back(mask);
  }
  SetFamilyTemplates(source, &parts);
  return parts;
}

std::unique_ptr<Tokenizer> MakeTokenizer(const Source& source) {
  Parts parts;
  try {
    if (source.tokenizer_json.is_object()) {
      parts = FromTokenizerJson(source);
    } else if (source.family != nullptr && source.family->kind == Family::kWordPiece &&
               source.Has("vocab.txt")) {
      parts = FromVocabTxt(source);
    } else if (source.family != nullptr && source.family->kind == Family::kByteLevelBpe &&
               source.Has("vocab.json")) {
      parts = FromVocabJson(source);
    } else {
      const auto found = std::find_if(kSentencePieceNames.begin(), kSentencePieceNames.end(),
                                      [&](const char* name) { return source.Has(name); });
      if (found == kSentencePieceNames.end() || source.family == nullptr ||
          source.family->kind != Family::kSentencePiece) {
        std::string there;
        for (const auto& [name, contents] : source.files) {
          there += (there.empty() ? "" : ", ") + name;
        }
        throw NotFound(
            source.dir + ": no tokenizer" +
                (source.family ? std::string(" for ") + source.family->tokenizer_class : "") +
                ": looked for tokenizer.json, vocab.txt, vocab.json, " +
                JoinNames(kSentencePieceNames, std::identity()) + ", found " +
                (there.empty() ? "none of their files" : there),
            SupportedTokenizers());
      }
      parts = FromSentencePiece(source, *found);
    }
    SetCommonParts(source, &parts);
  } catch (const Json::exception& error) {
    // The parts of the other files are read with ReadPart.
    throw InvalidArgument(source.Path("tokenizer_config.json") + ": " + WithoutTag(error.what()),
                          kBrokenTokenizer);
  }
  // Writes down the class, which Transformers would otherwise have to guess from the folder.
  if (!source.Has("tokenizer_config.json") && source.family != nullptr) {
    parts.files["tokenizer_config.json"] =
        DumpJson(Json{{"tokenizer_class", source.family->tokenizer_class}}, 2) + "\n";
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& dir, const std::string& model_type) {
  Files files;
  const auto read = [&](const char* name) {
    const std::string path = dir + "/" + name;
    // A folder of that name is not the tokenizer's.
    if (std::filesystem::exists(path) && !std::filesystem::is_directory(path)) {
      files[name] = ReadRegularFile(path);
    }
  };
  std::for_each(kOtherNames.begin(), kOtherNames.end(), read);
  std::for_each(kSentencePieceNames.begin(), kSentencePieceNames.end(), read);
  std::for_each(kByteLevelBpeNames.begin(), kByteLevelBpeNames.end(), read);
  return TokenizerFromContents(dir, std::move(files), model_type);
}

std::unique_ptr<Tokenizer> TokenizerFromContents(const std::string& dir,
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
