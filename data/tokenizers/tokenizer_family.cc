#include "lathe/data/tokenizers/tokenizer_family.h"

#include <vector>

#include "lathe/data/tokenizers/kind_table.h"
#include "lathe/data/tokenizers/model.h"
#include "lathe/data/tokenizers/post_processor.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Family = TokenizerFamily;

Json BertNormalizer(const Json& config) {
  return {{"type", "BertNormalizer"},
          {"handle_chinese_chars", ConfigValue(config, "tokenize_chinese_chars", true)},
          {"strip_accents", config.value("strip_accents", Json())},
          {"lowercase", ConfigValue(config, "do_lower_case", true)}};
}

// Follows Transformers' slow tokenizer step by step.
Json AlbertNormalizer(const Json& config) {
  Json steps = AlbertNormalizers(ConfigValue(config, "do_lower_case", true),
                                 ConfigValue(config, "keep_accents", false));
  steps.insert(steps.begin(), Json{{"type", "Strip"}});
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json LowercaseIfConfigured(const Json& config) {
  return ConfigValue(config, "do_lower_case", false) ? Json{{"type", "Lowercase"}} : Json();
}

Json NoNormalizer(const Json&) { return Json(); }

const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{
      {"bert", "BertTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]", "[PAD]",
       "[MASK]", BertNormalizer, BertTemplates},
      {"electra", "ElectraTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]", "[PAD]",
       "[MASK]", BertNormalizer, BertTemplates},
      {"convbert", "ConvBertTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]",
       "[PAD]", "[MASK]", BertNormalizer, BertTemplates},
      {"mobilebert", "MobileBertTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]",
       "[PAD]", "[MASK]", BertNormalizer, BertTemplates},
      {"squeezebert", "SqueezeBertTokenizer", Family::kWordPiece, true, "[CLS]", "[SEP]", "[UNK]",
       "[PAD]", "[MASK]", BertNormalizer, BertTemplates},
      {"distilbert", "DistilBertTokenizer", Family::kWordPiece, false, "[CLS]", "[SEP]", "[UNK]",
       "[PAD]", "[MASK]", BertNormalizer, BertTemplates},
      {"mpnet", "MPNetTokenizer", Family::kWordPiece, false, "<s>", "</s>", "[UNK]", "<pad>",
       "<mask>", BertNormalizer, RobertaTemplates, true},
      {"roberta", "RobertaTokenizer", Family::kByteLevelBpe, false, "<s>", "</s>", "<unk>", "<pad>",
       "<mask>", NoNormalizer, RobertaTemplates, true},
      {"albert", "AlbertTokenizer", Family::kSentencePiece, false, "[CLS]", "[SEP]", "<unk>",
       "<pad>", "[MASK]", AlbertNormalizer, BertTemplates, false,
       SentencePieceIdMapping{
           .first_tokens = {}, .offset = 0, .unk_id = 1, .split_digit_comma = true}},
      {"camembert", "CamembertTokenizer", Family::kSentencePiece, false, "<s>", "</s>", "<unk>",
       "<pad>", "<mask>", LowercaseIfConfigured, RobertaTemplates, true,
       SentencePieceIdMapping{
           .first_tokens = {"<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"},
           .offset = 4,
           .unk_id = 3}},
      {"xlm-roberta", "XLMRobertaTokenizer", Family::kSentencePiece, false, "<s>", "</s>", "<unk>",
       "<pad>", "<mask>", LowercaseIfConfigured, RobertaTemplates, true,
       SentencePieceIdMapping{
           .first_tokens = {"<s>", "<pad>", "</s>", "<unk>"}, .offset = 1, .unk_id = 3}},
      {"deberta-v2", "DebertaV2Tokenizer", Family::kSentencePiece, true, "[CLS]", "[SEP]", "[UNK]",
       "[PAD]", "[MASK]", LowercaseIfConfigured, BertTemplates, false,
       SentencePieceIdMapping{.first_tokens = {}, .offset = 0, .unk_id = 3}},
  };
  return *families;
}

}  // namespace

const Family* FindTokenizerFamily(const std::string& tokenizer_class,
                                  const std::string& model_type) {
  std::string name = tokenizer_class;
  if (name.ends_with("Fast")) {
    name.resize(name.size() - 4);
  }
  for (const Family& family : Families()) {
    if (name.empty() ? model_type == family.model_type : name == family.tokenizer_class) {
      return &family;
    }
  }
  return nullptr;
}

std::string SupportedTokenizers() {
  return "Lathe supports the tokenizers of " + JoinNames(Families(), &Family::model_type) +
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
