#include "lathe/data/tokenizers/tokenizer_family.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/model.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Family = TokenizerFamily;

// Follows Transformers' slow tokenizer step by step.
Json AlbertNormalizer(const Json& config) {
  Json steps = AlbertNormalizers(ConfigValue(config, "do_lower_case", true),
                                 ConfigValue(config, "keep_accents", false));
  steps.insert(steps.begin(), Json{{"type", "Strip"}});
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json NoNormalizer(const Json&) { return Json(); }

// Classes of Transformers 4 that are BERT's under another name.
constexpr std::array<std::string_view, 3> kNamesOfBert = {
    "ConvBertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"};

// A map by model_type. It is a function's static, because families are registered before main(), in
// no fixed order.
std::map<std::string, Family>& Families() {
  static auto* const families = new std::map<std::string, Family>{
      {"albert",
       {.model_type = "albert",
        .tokenizer_class = "AlbertTokenizer",
        .kind = Family::kSentencePiece,
        .unk = "<unk>",
        .pad = "<pad>",
        .normalizer = AlbertNormalizer,
        .ids = {.first_tokens = {}, .offset = 0, .unk_id = 1, .split_digit_comma = true}}},
      {"bert", {.model_type = "bert", .tokenizer_class = "BertTokenizer", .token_type_ids = true}},
      {"roberta",
       {.model_type = "roberta",
        .tokenizer_class = "RobertaTokenizer",
        .kind = Family::kByteLevelBpe,
        .cls = "<s>",
        .sep = "</s>",
        .unk = "<unk>",
        .pad = "<pad>",
        .mask = "<mask>",
        .normalizer = NoNormalizer,
        .templates = RobertaTemplates,
        .mask_lstrip = true}},
  };
  return *families;
}

}  // namespace

Json BertNormalizer(const Json& config) {
  return {{"type", "BertNormalizer"},
          {"handle_chinese_chars", ConfigValue(config, "tokenize_chinese_chars", true)},
          {"strip_accents", config.value("strip_accents", Json())},
          {"lowercase", ConfigValue(config, "do_lower_case", true)}};
}

Json LowercaseIfConfigured(const Json& config) {
  return ConfigValue(config, "do_lower_case", false) ? Json{{"type", "Lowercase"}} : Json();
}

void RegisterTokenizerFamily(Family family) {
  const std::string model_type = family.model_type, tokenizer_class = family.tokenizer_class;
  Check(!model_type.empty() && !tokenizer_class.empty(), "tokenizer", "the family of model_type \"",
        model_type, "\" and class \"", tokenizer_class, "\" needs both names");
  Check(FindTokenizerFamily(tokenizer_class, "") == nullptr, "tokenizer", "the class \"",
        tokenizer_class, "\" is registered twice");
  Check(Families().emplace(model_type, std::move(family)).second, "tokenizer",
        "the family of model_type \"", model_type, "\" is registered twice");
}

const Family* FindTokenizerFamily(const std::string& tokenizer_class,
                                  const std::string& model_type) {
  std::string name = tokenizer_class;
  if (name.ends_with("Fast")) {
    name.resize(name.size() - 4);
  }
  if (std::find(kNamesOfBert.begin(), kNamesOfBert.end(), name) != kNamesOfBert.end()) {
    name = "BertTokenizer";
  }
  for (const auto& [type, family] : Families()) {
    if (name.empty() ? model_type == type : name == family.tokenizer_class) {
      return &family;
    }
  }
  return nullptr;
}

std::string SupportedTokenizers() {
  return "Lathe supports the tokenizers of " +
         JoinNames(Families(), [](const auto& row) { return row.first; }) +
         ", and a tokenizer.json with a " + SubwordModelTypes() + " model";
}

Json AlbertNormalizers(bool do_lower_case, bool keep_accents) {
  Json steps = Json::array();
  for (const char* quotes : {"``", "''"}) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", quotes}}}, {"content", "\""}});
  }
  if (!keep_accents) {
    steps.push_back({{"type", "NFKD"}});
    steps.push_back({{"type", "StripAccents"}});
  }
  if (do_lower_case) {
    steps.push_back({{"type", "Lowercase"}});
  }
  return steps;
}

}  // namespace lathe
