// RoBERTa (Liu et al. 2019), XLM-RoBERTa, CamemBERT and data2vec for text (Baevski et al. 2022).
// They are computed like Transformers' RobertaForSequenceClassification. This is BERT's encoder
// with positions behind the padding row, and a head of its own.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

nlohmann::json Defaults(int64_t vocab_size) {
  nlohmann::json defaults = BertLikeConfigDefaults();
  defaults.update({{"pad_token_id", 1}, {"vocab_size", vocab_size}});
  return defaults;
}

PostNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  PostNormEncoderOptions options = ReadPostNormEncoderOptions(reader);
  options.embeddings.first_position = ReadFirstPosition(reader);
  return options;
}

// Returns the tokenizers of XLM-RoBERTa and CamemBERT, which differ in where SentencePiece's ids
// lie.
TokenizerFamily SentencePieceTokenizer(const std::string& tokenizer_class,
                                       SentencePieceIdMapping ids) {
  return {.tokenizer_class = tokenizer_class,
          .kind = TokenizerFamily::kSentencePiece,
          .cls = "<s>",
          .sep = "</s>",
          .unk = "<unk>",
          .pad = "<pad>",
          .mask = "<mask>",
          .normalizer = LowercaseIfConfigured,
          .templates = RobertaTemplates,
          .mask_lstrip = true,
          .ids = std::move(ids)};
}

// Declares one of the model types. `encoder` is the name of the encoder in checkpoints.
Architecture Declare(const std::string& model_type, const std::string& class_name,
                     int64_t vocab_size, const char* encoder = "roberta",
                     std::optional<TokenizerFamily> tokenizer = {}) {
  const nlohmann::json defaults = Defaults(vocab_size);
  return {
      .model_type = model_type,
      .class_name = class_name,
      .make =
          [defaults, encoder](const PretrainedConfig& config, uint64_t seed) {
            const ConfigReader reader(config, defaults);
            const double dropout = reader.Probability(
                config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob");
            return std::make_shared<EncoderClassifier>(
                config, seed, encoder,
                std::make_shared<PostNormEncoder>(encoder, reader.Settings(), ReadOptions(reader)),
                ClassifierHeadOptions{
                    .activation = ActivationKind::kTanh,
                    .input_dropout = dropout,
                    .dropout = dropout,
                    .initializer_range = reader.NotNegative("initializer_range")});
          },
      .names = {.base_prefix = std::string(encoder) + "."},
      .config_defaults = defaults,
      .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
      .tokenizer_model_type = tokenizer.has_value() ? "" : "roberta",
      .tokenizer = tokenizer,
      .pass_memory =
          [defaults](const SequenceClassifier& model, const MemoryOptions& options) {
            return PostNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), defaults)),
                                         options);
          },
  };
}

const ArchitectureRegistration kRoberta(Declare("roberta", "RobertaForSequenceClassification",
                                                50265));
const ArchitectureRegistration kXlmRoberta(
    Declare("xlm-roberta", "XLMRobertaForSequenceClassification", 30522, "roberta",
            SentencePieceTokenizer(
                "XLMRobertaTokenizer",
                {.first_tokens = {"<s>", "<pad>", "</s>", "<unk>"}, .offset = 1, .unk_id = 3})));
const ArchitectureRegistration kCamembert(
    Declare("camembert", "CamembertForSequenceClassification", 30522, "roberta",
            SentencePieceTokenizer("CamembertTokenizer",
                                   {.first_tokens = {"<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>",
                                                     "<unk>NOTUSED"},
                                    .offset = 4,
                                    .unk_id = 3})));
const ArchitectureRegistration kData2VecText(Declare("data2vec-text",
                                                     "Data2VecTextForSequenceClassification", 30522,
                                                     "data2vec_text"));

}  // namespace
}  // namespace lathe
