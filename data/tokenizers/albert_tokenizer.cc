// Converts a SentencePiece model into the tokenizer.json that Transformers' AlbertTokenizer would
// make of it, and loads that. Both libraries thus encode by the same description.
#include <iterator>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/tokenizers/load_tokenizer.h"
#include "lathe/data/tokenizers/models/sentencepiece_model.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/data/tokenizers/tokenizer_family.h"
#include "lathe/data/tokenizers/unicode/charsmap.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr const char* kFirstPieces[] = {"<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"};
constexpr int kClsId = 2, kSepId = 3;

// Throws unless the model is a unigram model whose first pieces are kFirstPieces.
void CheckModel(const SentencePieceModelInfo& info, const std::string& spm_file) {
  if (!info.is_unigram) {
    throw InvalidArgument(spm_file + ": not a unigram model", "train it with --model_type=unigram");
  }
  for (size_t id = 0; id < std::size(kFirstPieces); ++id) {
    if (id >= info.pieces.size() || info.pieces[id].text != kFirstPieces[id]) {
      throw InvalidArgument(spm_file + ": piece " + std::to_string(id) + " must be '" +
                                kFirstPieces[id] + "' but is '" +
                                (id < info.pieces.size() ? info.pieces[id].text : "") + "'",
                            "train it with --pad_id=0 --unk_id=1 --bos_id=-1 --eos_id=-1 "
                            "--control_symbols=[CLS],[SEP],[MASK]");
    }
  }
}

Json AddedTokens() {
  Json added = Json::array();
  for (size_t id = 0; id < std::size(kFirstPieces); ++id) {
    added.push_back({{"id", id},
                     {"content", kFirstPieces[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

// `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`; B and the last token have type 1.
Json PostProcessor() {
  const auto special = [](const char* token, int type_id) {
    return Json{{"SpecialToken", {{"id", token}, {"type_id", type_id}}}};
  };
  const auto sequence = [](const char* id, int type_id) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type_id}}}};
  };
  const auto ids = [](const char* token, int id) {
    return Json{{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
  };
  const Json single = Json::array({special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)});
  Json pair = single;
  pair.push_back(sequence("B", 1));
  pair.push_back(special("[SEP]", 1));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", {{"[CLS]", ids("[CLS]", kClsId)}, {"[SEP]", ids("[SEP]", kSepId)}}}};
}

// Returns the contents of tokenizer.json.
Json TokenizerJson(const SentencePieceModelInfo& info, bool do_lower_case, bool keep_accents) {
  Json vocab = Json::array();
  for (const auto& piece : info.pieces) {
    vocab.push_back({piece.text, piece.score});
  }
  Json normalizers = AlbertNormalizers(do_lower_case, keep_accents);
  if (!info.precompiled_charsmap.empty()) {
    normalizers.push_back({{"type", "Precompiled"},
                           {"precompiled_charsmap", EncodeBase64(info.precompiled_charsmap)}});
  }
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"split", true}};
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", AddedTokens()},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers", Json::array({Json{{"type", "WhitespaceSplit"}}, metaspace})}}},
      {"post_processor", PostProcessor()},
      {"decoder", metaspace},
      {"model", {{"type", "Unigram"}, {"unk_id", 1}, {"vocab", vocab}, {"byte_fallback", false}}}};
}

// Returns the contents of tokenizer_config.json.
Json TokenizerConfig(bool do_lower_case, bool keep_accents, int64_t model_max_length) {
  Json config = {{"tokenizer_class", "AlbertTokenizer"},
                 {"backend", "tokenizers"},  // as Transformers 5 writes
                 {"do_lower_case", do_lower_case},
                 {"keep_accents", keep_accents},
                 {"bos_token", "[CLS]"},
                 {"eos_token", "[SEP]"},
                 {"cls_token", "[CLS]"},
                 {"sep_token", "[SEP]"},
                 {"unk_token", "<unk>"},
                 {"pad_token", "<pad>"},
                 {"mask_token", "[MASK]"},
                 // AutoTokenizer makes no token types for this class unless it is told to.
                 {"model_input_names", {"input_ids", "token_type_ids", "attention_mask"}}};
  if (model_max_length > 0) {
    config["model_max_length"] = model_max_length;
  }
  return config;
}

}  // namespace

std::unique_ptr<Tokenizer> AlbertTokenizerFromSentencePiece(const std::string& spm_file,
                                                            bool do_lower_case, bool keep_accents,
                                                            int64_t model_max_length) {
  const std::string bytes = ReadFile(spm_file);
  const SentencePieceModelInfo info = ParseSentencePieceModel(bytes, spm_file);
  CheckModel(info, spm_file);
  const Json json = TokenizerJson(info, do_lower_case, keep_accents);
  const Json config = TokenizerConfig(do_lower_case, keep_accents, model_max_length);
  return TokenizerFromContents(spm_file,
                               {{"spiece.model", bytes},
                                {"tokenizer.json", DumpJson(json) + "\n"},
                                {"tokenizer_config.json", DumpJson(config, 2) + "\n"}},
                               "albert");
}

}  // namespace lathe
