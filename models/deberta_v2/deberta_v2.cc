// The second and third version of DeBERTa (He et al. 2020 and 2021), computed like Transformers'
// DebertaV2ForSequenceClassification. Far distances share rows, the rows may have a norm, and the
// first layer may have a convolution.
#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lathe/models/encoders/disentangled/disentangled_classifier.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* json = new nlohmann::json(DisentangledConfigDefaults());
    json->update({{"conv_act", "tanh"},
                  {"conv_groups", 1},
                  {"conv_kernel_size", 0},
                  {"hidden_size", 1536},
                  {"intermediate_size", 6144},
                  {"norm_rel_ebd", "none"},
                  {"num_attention_heads", 24},
                  {"num_hidden_layers", 24},
                  {"position_buckets", -1},
                  {"share_att_key", false},
                  {"vocab_size", 128100}});
    return json;
  }();
  return *defaults;
}

DisentangledOptions ReadOptions(const PretrainedConfig& config, const ConfigReader& reader) {
  DisentangledOptions options = ReadDisentangledOptions(config, reader);
  options.layer.shares_projections = reader.Bool("share_att_key");
  const std::string norms = absl::AsciiStrToLower(reader.String("norm_rel_ebd"));
  for (const absl::string_view norm : absl::StrSplit(norms, '|')) {
    if (absl::StripAsciiWhitespace(norm) == "layer_norm") options.norms_distances = true;
  }
  return options;
}

Architecture Declare() {
  Architecture architecture = DisentangledArchitecture(
      "deberta-v2", "DebertaV2ForSequenceClassification", Defaults(), ReadOptions);
  architecture.tokenizer = TokenizerFamily{.tokenizer_class = "DebertaV2Tokenizer",
                                           .kind = TokenizerFamily::kSentencePiece,
                                           .token_type_ids = true,
                                           .normalizer = LowercaseIfConfigured,
                                           .ids = {.first_tokens = {}, .offset = 0, .unk_id = 3}};
  return architecture;
}

const ArchitectureRegistration kDebertaV2(Declare());

}  // namespace
}  // namespace lathe
