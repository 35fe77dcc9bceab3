// EuroBERT (Boizard et al. 2025), computed like Transformers' EuroBertForSequenceClassification:
// layers like those of Llama whose tokens see each other in both directions.
#include <absl/strings/str_cat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/models/architecture.h"
#include "lathe/models/config/config_reader.h"
#include "lathe/models/config/rope_parameters.h"
#include "lathe/models/encoders/device_constant.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/gated_encoder_memory.h"
#include "lathe/models/encoders/normed_embeddings.h"
#include "lathe/models/encoders/post_norm_encoder.h"
#include "lathe/models/eurobert/eurobert_layer.h"

namespace lathe {
namespace {

constexpr const char* kModel = "eurobert";

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_bias", false},
                                                   {"attention_dropout", 0.0},
                                                   {"classifier_pooling", "late"},
                                                   {"head_dim", nullptr},
                                                   {"hidden_act", "silu"},
                                                   {"hidden_size", 768},
                                                   {"initializer_range", 0.02},
                                                   {"intermediate_size", 3072},
                                                   {"max_position_embeddings", 8192},
                                                   {"mlp_bias", false},
                                                   {"num_attention_heads", 12},
                                                   {"num_hidden_layers", 12},
                                                   {"num_key_value_heads", nullptr},
                                                   {"pad_token_id", 128001},
                                                   {"rms_norm_eps", 1e-5},
                                                   {"rope_parameters", nullptr},
                                                   {"rope_scaling", nullptr},
                                                   {"rope_theta", nullptr},
                                                   {"vocab_size", 128256}};
  return *defaults;
}

struct EuroBertOptions {
  NormedEmbeddingsOptions embeddings;
  EuroBertLayerOptions layer;
  int64_t num_hidden_layers = 0;
  std::vector<float> frequencies;
};

EuroBertLayerOptions ReadLayer(const ConfigReader& reader) {
  EuroBertLayerOptions layer;
  layer.hidden_size = reader.Int("hidden_size", 1, 32768);
  layer.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  CheckHeads(reader, "hidden_size", "num_attention_heads");
  const auto or_else = [&](const char* key, int64_t value) {
    return reader.IsNull(key) ? value : reader.Int(key, 1, 32768);
  };
  layer.head_dim = or_else("head_dim", layer.hidden_size / layer.num_attention_heads);
  if (layer.head_dim % 2 != 0) {
    throw WrongConfig(reader.path(), {"head_dim", "hidden_size", "num_attention_heads"},
                      absl::StrCat("heads have ", layer.head_dim,
                                   " columns, but rotary positions need an even number"),
                      "correct \"head_dim\", \"hidden_size\" or \"num_attention_heads\"");
  }
  layer.num_key_value_heads = or_else("num_key_value_heads", layer.num_attention_heads);
  if (layer.num_attention_heads % layer.num_key_value_heads != 0) {
    throw WrongConfig(
        reader.path(), {"num_attention_heads", "num_key_value_heads"},
        absl::StrCat("\"num_attention_heads\" ", layer.num_attention_heads,
                     " is not a multiple of \"num_key_value_heads\" ", layer.num_key_value_heads),
        "correct one of the two");
  }
  layer.intermediate_size = reader.Int("intermediate_size", 1, 1 << 30);
  layer.hidden_act = reader.Activation("hidden_act");
  layer.rms_norm_eps = reader.NotNegative("rms_norm_eps");
  layer.attention_bias = reader.Bool("attention_bias");
  layer.mlp_bias = reader.Bool("mlp_bias");
  layer.attention_dropout = reader.Probability("attention_dropout");
  layer.initializer_range = reader.NotNegative("initializer_range");
  return layer;
}

EuroBertOptions ReadOptions(const PretrainedConfig& config) {
  const ConfigReader reader(config, Defaults());
  EuroBertOptions options;
  options.layer = ReadLayer(reader);
  options.num_hidden_layers = reader.Int("num_hidden_layers", 1, 1024);
  options.embeddings = {
      .vocab_size = reader.Int("vocab_size", 1, 1 << 30),
      .max_position_embeddings = reader.Int("max_position_embeddings", 1, 1 << 24),
      .hidden_size = options.layer.hidden_size,
      .pad_token_id = reader.Int("pad_token_id"),
      .initializer_range = options.layer.initializer_range,
      .hidden_dropout_prob = 0,
      .word = "",
      .has_norm = false,
      .has_positions = false,
      .in_float32 = true};
  options.frequencies = ReadRotaryFrequencies(config, options.layer.head_dim, {});
  return options;
}

class EuroBertEncoder : public Encoder {
 public:
  EuroBertEncoder(NamedSettings settings, const EuroBertOptions& options)
      : Encoder(kModel, std::move(settings)),
        options_(options),
        table_([n = options.embeddings.max_position_embeddings, f = options.frequencies] {
          return RotaryTable(n, f);
        }) {
    embeddings_ = Register<NormedEmbeddings>("embed_tokens", options.embeddings, kModel);
    for (int64_t i = 0; i < num_layers(); ++i) {
      layers_.push_back(Register<EuroBertLayer>(absl::StrCat("layers.", i), options.layer));
    }
    norm_ = Register<nn::RmsNorm>("norm", hidden_size(), options.layer.rms_norm_eps);
  }

  int64_t hidden_size() const override { return options_.layer.hidden_size; }
  int64_t num_layers() const override { return options_.num_hidden_layers; }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
    return embeddings_->Forward(batch, context);
  }

  void ExtendContext(nn::ForwardContext& context) const override {
    context.rotary.table = table_.On(context.row_positions.device());
  }

  // The last layer applies the final norm, too.
  LayerFunction Layer(int64_t i) const override {
    return [layer = layers_[static_cast<size_t>(i)], norm = i + 1 == num_layers() ? norm_ : nullptr,
            site = absl::StrCat("layers.", i)](const Tensor& hidden_states,
                                               const nn::ForwardContext& context,
                                               bool first_tokens_only) {
      const Tensor y = layer->Forward(hidden_states, context, first_tokens_only, site);
      return norm == nullptr ? y : norm->Forward(y);
    };
  }

  EuroBertOptions options_;
  mutable DeviceConstant table_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::vector<std::shared_ptr<EuroBertLayer>> layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
};

Pooling ReadPooling(const ConfigReader& reader) {
  const std::string pooling = reader.String("classifier_pooling");
  if (pooling == "bos") return Pooling::kFirstToken;
  if (pooling == "mean") return Pooling::kMean;
  if (pooling == "late") return Pooling::kMeanLogits;
  throw WrongConfig(reader.path(), {"classifier_pooling"},
                    absl::StrCat("\"classifier_pooling\" \"", pooling,
                                 "\" is not supported; supported: bos, mean, late"),
                    "use one of these");
}

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const EuroBertOptions options = ReadOptions(config);
  return std::make_shared<EncoderClassifier>(
      config, seed, kModel, std::make_shared<EuroBertEncoder>(reader.Settings(), options),
      ClassifierHeadOptions{.encoder = "model",
                            .dense = "dense",
                            .output = "classifier",
                            .activation = ActivationKind::kGelu,
                            .initializer_range = options.layer.initializer_range,
                            .pooling = ReadPooling(reader)});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const EuroBertOptions encoder = ReadOptions(model.config());
  const EuroBertLayerOptions& layer = encoder.layer;
  return GatedEncoderMemory({.num_layers = encoder.num_hidden_layers,
                             .hidden_size = layer.hidden_size,
                             .intermediate_size = layer.intermediate_size,
                             .vocab_size = encoder.embeddings.vocab_size,
                             .num_heads = layer.num_attention_heads,
                             .query_columns = layer.num_attention_heads * layer.head_dim,
                             .key_columns = layer.num_key_value_heads * layer.head_dim,
                             .norm_numbers = 1,
                             .norms_embeddings = false,
                             .pooling = ReadPooling(ConfigReader(model.config(), Defaults())),
                             // Its input, the dense layer's product and the activation.
                             .head_columns = 3 * layer.hidden_size,
                             .table_bytes = encoder.embeddings.max_position_embeddings *
                                            layer.head_dim * SizeOf(DType::kF32),
                             .num_parameters = model.NumParameters()},
                            options);
}

const ArchitectureRegistration kEuroBert({
    .model_type = "eurobert",
    .class_name = "EuroBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "model.", .head_prefixes = {"dense.", "classifier."}},
    .config_defaults = Defaults(),
    .dropout_keys = {"attention_dropout"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
