// MPNet (Song et al. 2020), computed like Transformers' MPNetForSequenceClassification. This is
// RoBERTa's encoder without token types, and its parameters have other names. Attention has a bias
// for each range of distances. All layers share the biases.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_probs_dropout_prob", 0.1},
                                                   {"hidden_act", "gelu"},
                                                   {"hidden_dropout_prob", 0.1},
                                                   {"hidden_size", 768},
                                                   {"initializer_range", 0.02},
                                                   {"intermediate_size", 3072},
                                                   {"layer_norm_eps", 1e-12},
                                                   {"max_position_embeddings", 512},
                                                   {"num_attention_heads", 12},
                                                   {"num_hidden_layers", 12},
                                                   {"pad_token_id", 1},
                                                   {"relative_attention_num_buckets", 32},
                                                   {"vocab_size", 30527}};
  return *defaults;
}

constexpr int64_t kBuckets = 32;  // rows of the table that are used, whatever the config says

// Returns the bucket of the distance i - j of query i and key j (Raffel et al. 2020). Each
// direction has 16 buckets: one for each of the distances 0 to 7, and from 8 on two for each power
// of two.
int64_t Bucket(int64_t distance) {
  constexpr int64_t kEach = kBuckets / 2, kExact = kEach / 2;
  const int64_t m = std::abs(distance);
  int64_t bucket = std::min(m, kExact);
  // Bucket 8 + n begins where m >= 8 * 2^(n / 2). The squares are integers, so no rounding matters.
  while (m > kExact && bucket + 1 < kEach && m * m >= kExact * kExact << (bucket + 1 - kExact)) {
    ++bucket;
  }
  return distance < 0 ? kEach + bucket : bucket;
}

PostNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  constexpr int64_t kMost = 1 << 30;
  constexpr int64_t kPadding = 1;  // its row in both tables, whatever "pad_token_id" says
  PostNormEncoderOptions options = ReadPostNormEncoderOptions(reader);
  options.embeddings.pad_token_id = kPadding;
  options.embeddings.first_position = kPadding + 1;
  options.embeddings.max_position_embeddings =
      reader.Int("max_position_embeddings", options.embeddings.first_position + 1, kMost);
  options.layer.names = {.self_attention = "attention.attn",
                         .query = "q",
                         .key = "k",
                         .value = "v",
                         .attention_output = "attention.attn.o",
                         .attention_norm = "attention.LayerNorm"};
  options.relative_row = Bucket;
  options.num_relative_biases = reader.Int("relative_attention_num_buckets", kBuckets, kMost);
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const double dropout = reader.Probability("hidden_dropout_prob");
  return std::make_shared<EncoderClassifier>(
      config, seed, "mpnet",
      std::make_shared<PostNormEncoder>("mpnet", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{.activation = ActivationKind::kTanh,
                            .input_dropout = dropout,
                            .dropout = dropout,
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PostNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                               options);
}

const ArchitectureRegistration kMpNet({
    .model_type = "mpnet",
    .class_name = "MPNetForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "mpnet."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob"},
    .tokenizer = TokenizerFamily{.tokenizer_class = "MPNetTokenizer",
                                 .cls = "<s>",
                                 .sep = "</s>",
                                 .pad = "<pad>",
                                 .mask = "<mask>",
                                 .templates = RobertaTemplates,
                                 .mask_lstrip = true},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
