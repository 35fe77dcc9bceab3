#include "lathe/models/encoders/disentangled/disentangled_options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/json/json_text.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

// The configuration may hold a list of terms, or a text such as "p2c|c2p". As in Transformers, an
// empty text means no terms.
void ReadTerms(const PretrainedConfig& config, DisentangledLayerOptions& options) {
  if (!config.has("pos_att_type")) return;
  const nlohmann::json& value = config.json()["pos_att_type"];
  std::vector<std::string> terms;
  if (value.is_string()) {
    terms = absl::StrSplit(absl::AsciiStrToLower(value.get<std::string>()), '|',
                           absl::SkipWhitespace());
  } else if (value.is_array()) {
    for (const nlohmann::json& term : value) {
      terms.push_back(term.is_string() ? term.get<std::string>() : DumpJson(term));
    }
  } else {
    terms.push_back(DumpJson(value));
  }
  for (const std::string& term : terms) {
    const std::string name(absl::StripAsciiWhitespace(term));
    bool* const flag = name == "c2p"   ? &options.content_to_position
                       : name == "p2c" ? &options.position_to_content
                                       : nullptr;
    if (flag == nullptr || *flag) {
      throw WrongConfig(config.path(), {"pos_att_type"},
                        absl::StrCat("\"pos_att_type\" has \"", name, "\"",
                                     flag == nullptr ? "; known: c2p, p2c" : " twice"),
                        "correct the value");
    }
    *flag = true;
  }
}

void Refuse(const ConfigReader& reader, const std::string& key, const std::string& what) {
  throw WrongConfig(reader.path(), {key}, absl::StrCat("\"", key, "\" ", what),
                    "use a model without it");
}

// A convolution has an odd number of taps, so that it gives a row for each token.
void ReadConvolution(const ConfigReader& reader, DisentangledOptions& options) {
  options.conv_kernel_size = std::max<int64_t>(0, reader.Int("conv_kernel_size"));
  if (options.conv_kernel_size == 0) return;
  options.conv_kernel_size = reader.Int("conv_kernel_size", 1, 1023);
  if (options.conv_kernel_size % 2 == 0) {
    throw WrongConfig(
        reader.path(), {"conv_kernel_size"},
        absl::StrCat("\"conv_kernel_size\" must be odd but is ", options.conv_kernel_size),
        "correct the value");
  }
  options.conv_groups = reader.Int("conv_groups", 1, 32768);
  CheckHeads(reader, "hidden_size", "conv_groups");
  options.conv_act = reader.Activation("conv_act");
}

}  // namespace

nlohmann::json DisentangledConfigDefaults() {
  return {{"attention_probs_dropout_prob", 0.1},
          {"cls_dropout", nullptr},
          {"embedding_size", nullptr},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", 0.1},
          {"hidden_size", 768},
          {"initializer_range", 0.02},
          {"intermediate_size", 3072},
          {"layer_norm_eps", 1e-7},
          {"max_position_embeddings", 512},
          {"max_relative_positions", -1},
          {"num_attention_heads", 12},
          {"num_hidden_layers", 12},
          {"pad_token_id", 0},
          {"pooler_dropout", 0.0},
          {"pooler_hidden_act", "gelu"},
          {"pos_att_type", nullptr},
          {"position_biased_input", true},
          {"relative_attention", false},
          {"type_vocab_size", 0},
          {"vocab_size", 50265}};
}

DisentangledOptions ReadDisentangledOptions(const PretrainedConfig& config,
                                            const ConfigReader& reader) {
  constexpr int64_t kMost = 1 << 30;
  DisentangledOptions options;
  nn::PostNormLayerOptions& o = options.layer.layer;
  o.hidden_size = reader.Int("hidden_size", 1, 32768);
  o.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  o.intermediate_size = reader.Int("intermediate_size", 1, kMost);
  o.hidden_act = reader.Activation("hidden_act");
  o.hidden_dropout_prob = reader.Probability("hidden_dropout_prob");
  o.attention_probs_dropout_prob = reader.Probability("attention_probs_dropout_prob");
  o.layer_norm_eps = reader.NotNegative("layer_norm_eps");
  o.initializer_range = reader.NotNegative("initializer_range");
  CheckHeads(reader, "hidden_size", "num_attention_heads");
  options.num_hidden_layers = reader.Int("num_hidden_layers", 1, 1024);
  options.vocab_size = reader.Int("vocab_size", 1, kMost);
  options.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMost);
  options.type_vocab_size = reader.Int("type_vocab_size", 0, kMost);
  options.embedding_size = config.GetInt("embedding_size", o.hidden_size, 1, 32768);
  options.pad_token_id = reader.Int("pad_token_id");
  options.adds_positions = reader.Bool("position_biased_input");
  ReadTerms(config, options.layer);
  const bool has_terms = options.layer.content_to_position || options.layer.position_to_content;
  options.has_distance_table = reader.Bool("relative_attention");
  options.layer.has_distances = options.has_distance_table && has_terms;
  options.max_relative_positions = reader.Int("max_relative_positions", -1, kMost);
  if (options.max_relative_positions < 1) {
    options.max_relative_positions = options.max_position_embeddings;
  }
  const int64_t pooled = config.GetInt("pooler_hidden_size", o.hidden_size);
  if (pooled != o.hidden_size) {
    Refuse(reader, "pooler_hidden_size",
           absl::StrCat(pooled, " is not \"hidden_size\" ", o.hidden_size));
  }
  const int64_t head_size = o.hidden_size / o.num_attention_heads;
  const int64_t given_head_size = config.GetInt("attention_head_size", head_size);
  if (given_head_size != head_size) {
    Refuse(reader, "attention_head_size",
           absl::StrCat(given_head_size, " is not \"hidden_size\" / \"num_attention_heads\" ",
                        head_size));
  }
  options.layer.talking_heads = reader.Declares("talking_head") && reader.Bool("talking_head");
  if (reader.Declares("conv_kernel_size")) ReadConvolution(reader, options);
  if (reader.Declares("position_buckets")) {
    options.position_buckets = reader.Int("position_buckets", -1, kMost);
    const int64_t middle = options.position_buckets / 2;
    if (options.position_buckets == 1 ||
        (options.position_buckets > 0 && options.max_relative_positions - 1 <= middle &&
         options.max_position_embeddings - 1 > middle)) {
      throw WrongConfig(
          reader.path(), {"position_buckets", "max_relative_positions"},
          absl::StrCat("\"position_buckets\" ", options.position_buckets,
                       " does not fit \"max_relative_positions\" ", options.max_relative_positions),
          "correct one of the two");
    }
  }
  return options;
}

int64_t DistanceRow(const DisentangledOptions& options, int64_t distance) {
  int64_t bucket = distance;
  const int64_t middle = options.position_buckets / 2, span = options.span();
  if (options.position_buckets > 0 && std::abs(distance) > middle) {
    const float half = static_cast<float>(middle);
    const float most = static_cast<float>(options.max_relative_positions - 1);
    const float log = std::log(static_cast<float>(std::abs(distance)) / half) /
                      std::log(most / half) * static_cast<float>(middle - 1);
    const int64_t found = static_cast<int64_t>(std::ceil(log)) + middle;
    bucket = distance < 0 ? -found : found;
  }
  return std::clamp<int64_t>(bucket + span, 0, 2 * span - 1);
}

}  // namespace lathe
