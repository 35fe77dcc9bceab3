// ModernBERT (Warner et al. 2024), computed like Transformers' ModernBertForSequenceClassification:
// layers that normalise first, with rotary positions and gated feed-forward blocks. Most layers see
// only the neighbours of a token.
#include <absl/strings/str_cat.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/json/json_text.h"
#include "lathe/models/architecture.h"
#include "lathe/models/config/config_reader.h"
#include "lathe/models/config/rope_parameters.h"
#include "lathe/models/encoders/device_constant.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/gated_encoder_memory.h"
#include "lathe/models/encoders/normed_embeddings.h"
#include "lathe/models/encoders/post_norm_encoder.h"
#include "lathe/models/modernbert/modernbert_layer.h"

namespace lathe {
namespace {

constexpr const char* kModel = "modernbert";

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_bias", false},
                                                   {"attention_dropout", 0.0},
                                                   {"classifier_activation", "gelu"},
                                                   {"classifier_bias", false},
                                                   {"classifier_dropout", 0.0},
                                                   {"classifier_pooling", "cls"},
                                                   {"embedding_dropout", 0.0},
                                                   {"global_attn_every_n_layers", 3},
                                                   {"global_rope_theta", nullptr},
                                                   {"hidden_activation", "gelu"},
                                                   {"hidden_size", 768},
                                                   {"initializer_cutoff_factor", 2.0},
                                                   {"initializer_range", 0.02},
                                                   {"intermediate_size", 1152},
                                                   {"layer_types", nullptr},
                                                   {"local_attention", 128},
                                                   {"local_rope_theta", nullptr},
                                                   {"max_position_embeddings", 8192},
                                                   {"mlp_bias", false},
                                                   {"mlp_dropout", 0.0},
                                                   {"norm_bias", false},
                                                   {"norm_eps", 1e-5},
                                                   {"num_attention_heads", 12},
                                                   {"num_hidden_layers", 22},
                                                   {"pad_token_id", 50283},
                                                   {"rope_parameters", nullptr},
                                                   {"rope_scaling", nullptr},
                                                   {"vocab_size", 50368}};
  return *defaults;
}

struct ModernBertOptions {
  NormedEmbeddingsOptions embeddings;
  ModernBertLayerOptions layer;  // but for the window and the first norm
  std::vector<bool> is_local;    // for each layer
  int64_t window = 64;           // of the local layers
  std::vector<float> global_frequencies, local_frequencies;
};

// Returns for each of the layers whether it is local.
std::vector<bool> ReadLayerTypes(const PretrainedConfig& config, const ConfigReader& reader) {
  constexpr const char* kKey = "layer_types";
  const int64_t layers = reader.Int("num_hidden_layers", 1, 1024);
  std::vector<bool> is_local;
  if (reader.IsNull(kKey)) {
    const int64_t step = reader.Int("global_attn_every_n_layers", 1);
    for (int64_t i = 0; i < layers; ++i) is_local.push_back(i % step != 0);
    return is_local;
  }
  const nlohmann::json& types = config.json().at(kKey);
  if (!types.is_array() || std::ssize(types) != layers) {
    throw WrongConfig(
        reader.path(), {kKey, "num_hidden_layers"},
        absl::StrCat("\"", kKey, "\" must be a list of ", layers,
                     " kinds, one for each of \"num_hidden_layers\", but is ", DumpJson(types)),
        "correct one of the two");
  }
  for (const nlohmann::json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      throw WrongConfig(reader.path(), {kKey},
                        absl::StrCat("\"", kKey, "\" has ", DumpJson(type),
                                     "; known kinds: full_attention, sliding_attention"),
                        "correct the value");
    }
    is_local.push_back(type == "sliding_attention");
  }
  return is_local;
}

ModernBertLayerOptions ReadLayer(const ConfigReader& reader) {
  ModernBertLayerOptions layer;
  layer.hidden_size = reader.Int("hidden_size", 1, 32768);
  layer.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  CheckHeads(reader, "hidden_size", "num_attention_heads");
  CheckRotaryHeads(reader, "hidden_size", "num_attention_heads");
  layer.intermediate_size = reader.Int("intermediate_size", 1, 1 << 30);
  layer.hidden_activation = reader.Activation("hidden_activation");
  layer.norm_eps = reader.NotNegative("norm_eps");
  layer.norm_bias = reader.Bool("norm_bias");
  layer.attention_bias = reader.Bool("attention_bias");
  layer.mlp_bias = reader.Bool("mlp_bias");
  layer.attention_dropout = reader.Probability("attention_dropout");
  layer.mlp_dropout = reader.Probability("mlp_dropout");
  const double std_dev = reader.NotNegative("initializer_range");
  const double cutoff = reader.Positive("initializer_cutoff_factor");
  const auto layers = static_cast<double>(reader.Int("num_hidden_layers", 1, 1024));
  layer.in = Init::TruncatedNormal(std_dev, cutoff);
  layer.out = Init::TruncatedNormal(std_dev / std::sqrt(2 * layers), cutoff);
  return layer;
}

ModernBertOptions ReadOptions(const PretrainedConfig& config) {
  const ConfigReader reader(config, Defaults());
  ModernBertOptions options;
  options.layer = ReadLayer(reader);
  options.embeddings = {
      .vocab_size = reader.Int("vocab_size", 1, 1 << 30),
      .max_position_embeddings = reader.Int("max_position_embeddings", 1, 1 << 24),
      .hidden_size = options.layer.hidden_size,
      .pad_token_id = reader.Int("pad_token_id"),
      .layer_norm_eps = options.layer.norm_eps,
      .hidden_dropout_prob = reader.Probability("embedding_dropout"),
      .word = "tok_embeddings",
      .norm = "norm",
      .word_init = options.layer.in,
      .norm_has_bias = options.layer.norm_bias,
      .has_positions = false,
      .in_float32 = true};
  options.is_local = ReadLayerTypes(config, reader);
  options.window = reader.Int("local_attention", 0) / 2;
  const int64_t head_dim = options.layer.hidden_size / options.layer.num_attention_heads;
  options.global_frequencies = ReadRotaryFrequencies(
      config, head_dim,
      {.default_theta = 160000, .theta = "global_rope_theta", .layer_type = "full_attention"});
  options.local_frequencies = ReadRotaryFrequencies(
      config, head_dim,
      {.default_theta = 10000, .theta = "local_rope_theta", .layer_type = "sliding_attention"});
  return options;
}

class ModernBertEncoder : public Encoder {
 public:
  ModernBertEncoder(NamedSettings settings, const ModernBertOptions& options)
      : Encoder(kModel, std::move(settings)),
        options_(options),
        global_table_(MakeTable(options, options.global_frequencies)),
        local_table_(MakeTable(options, options.local_frequencies)) {
    embeddings_ = Register<NormedEmbeddings>("embeddings", options.embeddings, kModel);
    for (int64_t i = 0; i < num_layers(); ++i) {
      ModernBertLayerOptions layer = options.layer;
      layer.norms_input = i > 0;
      layer.window = IsLocal(i) ? options.window : -1;
      layers_.push_back(Register<ModernBertLayer>(absl::StrCat("layers.", i), layer));
      if (IsLocal(i)) RefuseGaps();
    }
    final_norm_ = Register<nn::LayerNorm>("final_norm", hidden_size(), options.layer.norm_eps,
                                          options.layer.norm_bias);
  }

  int64_t hidden_size() const override { return options_.layer.hidden_size; }
  int64_t num_layers() const override { return std::ssize(options_.is_local); }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  static std::shared_ptr<DeviceConstant> MakeTable(const ModernBertOptions& options,
                                                   const std::vector<float>& frequencies) {
    return std::make_shared<DeviceConstant>([n = options.embeddings.max_position_embeddings,
                                             frequencies] { return RotaryTable(n, frequencies); });
  }

  bool IsLocal(int64_t i) const { return options_.is_local[static_cast<size_t>(i)]; }

  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
    return embeddings_->Forward(batch, context);
  }

  void ExtendContext(nn::ForwardContext& context) const override {
    context.rotary.table = global_table_->On(context.row_positions.device());
  }

  // The last layer applies the final norm, too.
  LayerFunction Layer(int64_t i) const override {
    return
        [layer = layers_[static_cast<size_t>(i)], local_table = IsLocal(i) ? local_table_ : nullptr,
         norm = i + 1 == num_layers() ? final_norm_ : nullptr, site = absl::StrCat("layers.", i)](
            const Tensor& hidden_states, const nn::ForwardContext& context,
            bool first_tokens_only) {
          nn::ForwardContext own = context;
          if (local_table != nullptr) own.rotary.table = local_table->On(hidden_states.device());
          const Tensor y = layer->Forward(hidden_states, own, first_tokens_only, site);
          return norm == nullptr ? y : norm->Forward(y);
        };
  }

  ModernBertOptions options_;
  std::shared_ptr<DeviceConstant> global_table_, local_table_;  // of rotary positions
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::vector<std::shared_ptr<ModernBertLayer>> layers_;
  std::shared_ptr<nn::LayerNorm> final_norm_;
};

Pooling ReadPooling(const ConfigReader& reader) {
  const std::string pooling = reader.String("classifier_pooling");
  if (pooling == "cls") return Pooling::kFirstToken;
  if (pooling == "mean") return Pooling::kMean;
  throw WrongConfig(reader.path(), {"classifier_pooling"},
                    absl::StrCat("\"classifier_pooling\" \"", pooling,
                                 "\" is not supported; supported: cls, mean"),
                    "use one of these");
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const ModernBertOptions options = ReadOptions(config);
  const double cutoff = reader.Positive("initializer_cutoff_factor");
  return std::make_shared<EncoderClassifier>(
      config, seed, kModel, std::make_shared<ModernBertEncoder>(reader.Settings(), options),
      ClassifierHeadOptions{
          .encoder = "model",
          .dense = "head.dense",
          .output = "classifier",
          .activation = reader.Activation("classifier_activation"),
          .dropout = reader.Probability("classifier_dropout"),
          .dense_init = options.layer.out,
          .output_init = Init::TruncatedNormal(
              1 / std::sqrt(static_cast<double>(options.layer.hidden_size)), cutoff),
          .dense_has_bias = reader.Bool("classifier_bias"),
          .norm = "head.norm",
          .norm_eps = options.layer.norm_eps,
          .norm_has_bias = options.layer.norm_bias,
          .pooling = ReadPooling(reader)});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const ModernBertOptions encoder = ReadOptions(model.config());
  const ModernBertLayerOptions& layer = encoder.layer;
  const int64_t head_dim = layer.hidden_size / layer.num_attention_heads;
  return GatedEncoderMemory({.num_layers = std::ssize(encoder.is_local),
                             .hidden_size = layer.hidden_size,
                             .intermediate_size = layer.intermediate_size,
                             .vocab_size = encoder.embeddings.vocab_size,
                             .num_heads = layer.num_attention_heads,
                             .query_columns = layer.hidden_size,
                             .key_columns = layer.hidden_size,
                             .norms_first_input = false,
                             .pooling = ReadPooling(ConfigReader(model.config(), Defaults())),
                             // Its input, the dense layer's product, the activation and the norm.
                             .head_columns = 4 * layer.hidden_size,
                             .table_bytes = 2 * encoder.embeddings.max_position_embeddings *
                                            head_dim * SizeOf(DType::kF32),
                             .num_parameters = model.NumParameters()},
                            options);
}

const ArchitectureRegistration kModernBert({
    .model_type = "modernbert",
    .class_name = "ModernBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "model.", .head_prefixes = {"head.", "classifier."}},
    .config_defaults = Defaults(),
    .dropout_keys = {"attention_dropout", "classifier_dropout", "embedding_dropout", "mlp_dropout"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
