// DistilBERT (Sanh et al. 2019), computed like Transformers' DistilBertForSequenceClassification.
// This is BERT's encoder without token types and without dropout after attention. Its parameters
// have other names, and it has a head of its own.
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"activation", "gelu"},
                                                   {"attention_dropout", 0.1},
                                                   {"dim", 768},
                                                   {"dropout", 0.1},
                                                   {"hidden_dim", 3072},
                                                   {"initializer_range", 0.02},
                                                   {"max_position_embeddings", 512},
                                                   {"n_heads", 12},
                                                   {"n_layers", 6},
                                                   {"pad_token_id", 0},
                                                   {"seq_classif_dropout", 0.2},
                                                   {"sinusoidal_pos_embds", false},
                                                   {"vocab_size", 30522}};
  return *defaults;
}

// Keys of other families, which Transformers takes here for the family's own.
struct OtherKey {
  const char* name;
  const char* own;
};
constexpr std::array kOtherKeys = {OtherKey{"hidden_size", "dim"},
                                   OtherKey{"num_attention_heads", "n_heads"},
                                   OtherKey{"num_hidden_layers", "n_layers"}};

// Returns the configuration with the family's own keys only, as Transformers saves it. As there,
// the other key of a file counts if both have a value. PretrainedConfig::Override leaves only the
// key that it sets.
PretrainedConfig WithOwnKeys(PretrainedConfig config) {
  for (const OtherKey& other : kOtherKeys) {
    if (config.has(other.name)) config.json()[other.own] = config.json()[other.name];
    config.json().erase(other.name);
  }
  return config;
}

// The keys that may be overridden.
nlohmann::json AllKeys() {
  nlohmann::json keys = Defaults();
  for (const OtherKey& other : kOtherKeys) keys[other.name] = nullptr;
  return keys;
}

PostNormEncoderOptions ReadOptions(const ConfigReader& reader) {
  constexpr int64_t kMost = 1 << 30;
  PostNormEncoderOptions options;
  options.layers = "transformer.layer";
  options.num_hidden_layers = reader.Int("n_layers", 1, 1024);
  nn::PostNormLayerOptions& o = options.layer;
  o.hidden_size = reader.Int("dim", 1, 32768);
  o.num_attention_heads = reader.Int("n_heads", 1, 32768);
  CheckHeads(reader, "dim", "n_heads");
  o.intermediate_size = reader.Int("hidden_dim", 1, kMost);
  o.hidden_act = reader.Activation("activation");
  o.hidden_dropout_prob = reader.Probability("dropout");
  o.drops_attention_output = false;
  o.attention_probs_dropout_prob = reader.Probability("attention_dropout");
  o.layer_norm_eps = 1e-12;
  o.initializer_range = reader.NotNegative("initializer_range");
  o.names = {.self_attention = "attention",
             .query = "q_lin",
             .key = "k_lin",
             .value = "v_lin",
             .attention_output = "attention.out_lin",
             .attention_norm = "sa_layer_norm",
             .intermediate = "ffn.lin1",
             .output = "ffn.lin2",
             .output_norm = "output_layer_norm"};
  NormedEmbeddingsOptions& e = options.embeddings;
  e.vocab_size = reader.Int("vocab_size", 1, kMost);
  e.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMost);
  e.hidden_size = o.hidden_size;
  e.pad_token_id = reader.Int("pad_token_id");
  // Fresh positions are sinusoids. They are trained like others, as in Transformers 5.
  if (reader.Bool("sinusoidal_pos_embds")) e.position_init = Init::SinusoidPairs();
  e.initializer_range = o.initializer_range;
  e.layer_norm_eps = o.layer_norm_eps;
  e.hidden_dropout_prob = o.hidden_dropout_prob;
  return options;
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& given, uint64_t seed) {
  const PretrainedConfig config = WithOwnKeys(given);
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, "distilbert",
      std::make_shared<PostNormEncoder>("distilbert", reader.Settings(), ReadOptions(reader)),
      ClassifierHeadOptions{.dense = "pre_classifier",
                            .output = "classifier",
                            .activation = ActivationKind::kRelu,
                            .dropout = reader.Probability("seq_classif_dropout"),
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  return PostNormEncoderMemory(model, ReadOptions(ConfigReader(model.config(), Defaults())),
                               options);
}

const ArchitectureRegistration kDistilBert({
    .model_type = "distilbert",
    .class_name = "DistilBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "distilbert.", .head_prefixes = {"pre_classifier.", "classifier."}},
    .config_defaults = AllKeys(),
    .dropout_keys = {"dropout", "attention_dropout", "seq_classif_dropout"},
    .tokenizer = TokenizerFamily{.tokenizer_class = "DistilBertTokenizer"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
