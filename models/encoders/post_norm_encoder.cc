#include "lathe/models/encoders/post_norm_encoder.h"

#include <absl/strings/str_cat.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace lathe {

nlohmann::json BertLikeConfigDefaults() {
  return {{"attention_probs_dropout_prob", 0.1},
          {"classifier_dropout", nullptr},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", 0.1},
          {"hidden_size", 768},
          {"initializer_range", 0.02},
          {"intermediate_size", 3072},
          {"is_decoder", false},
          {"layer_norm_eps", 1e-12},
          {"max_position_embeddings", 512},
          {"num_attention_heads", 12},
          {"num_hidden_layers", 12},
          {"pad_token_id", 0},
          {"position_embedding_type", "absolute"},
          {"type_vocab_size", 2},
          {"vocab_size", 30522}};
}

void CheckHeads(const ConfigReader& reader, const std::string& columns_key,
                const std::string& heads_key) {
  const int64_t columns = reader.Int(columns_key), heads = reader.Int(heads_key);
  if (columns % heads == 0) return;
  throw WrongConfig(reader.path(), {columns_key, heads_key},
                    absl::StrCat("\"", columns_key, "\" ", columns, " is not a multiple of \"",
                                 heads_key, "\" ", heads),
                    "correct one of the two");
}

void CheckRotaryHeads(const ConfigReader& reader, const std::string& columns_key,
                      const std::string& heads_key) {
  const int64_t columns = reader.Int(columns_key), heads = reader.Int(heads_key);
  if (columns / heads % 2 == 0) return;
  throw WrongConfig(reader.path(), {columns_key, heads_key},
                    absl::StrCat("\"", columns_key, "\" ", columns, " and \"", heads_key, "\" ",
                                 heads, " make heads of ", columns / heads,
                                 " columns, but rotary positions need an even number"),
                    "correct one of the two");
}

int64_t ReadFirstPosition(const ConfigReader& reader) {
  const int64_t rows = reader.Int("max_position_embeddings");
  const int64_t first = reader.Int("pad_token_id", 0) + 1;
  if (first < rows) return first;
  throw WrongConfig(reader.path(), {"max_position_embeddings", "pad_token_id"},
                    absl::StrCat("\"max_position_embeddings\" ", rows,
                                 " leaves no position behind \"pad_token_id\" ", first - 1),
                    "correct one of the two");
}

namespace {

// Reads "position_embedding_type" after the sizes have been read.
void ReadPositionType(const ConfigReader& reader, PostNormEncoderOptions& options) {
  const std::string type = reader.String("position_embedding_type");
  if (type == "absolute") return;
  if (type != "relative_key" && type != "relative_key_query") {
    throw WrongConfig(reader.path(), {"position_embedding_type"},
                      absl::StrCat("\"position_embedding_type\" \"", type,
                                   "\" is not supported; supported: absolute, relative_key, "
                                   "relative_key_query"),
                      "use a model with one of these");
  }
  const int64_t positions = options.embeddings.max_position_embeddings;
  options.embeddings.adds_positions = false;
  options.layer.num_distances = 2 * positions - 1;
  options.layer.multiplies_keys = type == "relative_key_query";
  options.relative_row = [positions](int64_t distance) { return distance + positions - 1; };
}

}  // namespace

PostNormEncoderOptions ReadPostNormEncoderOptions(const ConfigReader& reader, bool check_heads) {
  constexpr int64_t kMost = 1 << 30;
  PostNormEncoderOptions options;
  nn::PostNormLayerOptions& o = options.layer;
  o.hidden_size = reader.Int("hidden_size", 1, 32768);
  o.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  o.intermediate_size = reader.Int("intermediate_size", 1, kMost);
  o.hidden_act = reader.Activation("hidden_act");
  o.hidden_dropout_prob = reader.Probability("hidden_dropout_prob");
  o.attention_probs_dropout_prob = reader.Probability("attention_probs_dropout_prob");
  o.layer_norm_eps = reader.NotNegative("layer_norm_eps");
  o.initializer_range = reader.NotNegative("initializer_range");
  NormedEmbeddingsOptions& e = options.embeddings;
  e.vocab_size = reader.Int("vocab_size", 1, kMost);
  e.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMost);
  if (reader.Declares("type_vocab_size")) {
    e.type_vocab_size = reader.Int("type_vocab_size", 1, kMost);
  }
  options.num_hidden_layers = reader.Int("num_hidden_layers", 1, 1024);
  if (check_heads) CheckHeads(reader, "hidden_size", "num_attention_heads");
  if (reader.Declares("position_embedding_type")) ReadPositionType(reader, options);
  if (reader.Declares("is_decoder") && reader.Bool("is_decoder")) {
    throw WrongConfig(reader.path(), {"is_decoder"},
                      "\"is_decoder\" is true; Lathe has encoders only", "use an encoder's model");
  }
  e.hidden_size = reader.Declares("embedding_size") && !reader.IsNull("embedding_size")
                      ? reader.Int("embedding_size", 1, 32768)
                      : o.hidden_size;
  e.pad_token_id = reader.Int("pad_token_id");
  e.initializer_range = o.initializer_range;
  e.layer_norm_eps = o.layer_norm_eps;
  e.hidden_dropout_prob = o.hidden_dropout_prob;
  return options;
}

PostNormEncoder::PostNormEncoder(const char* model, NamedSettings settings,
                                 const PostNormEncoderOptions& options)
    : Encoder(model, std::move(settings)), options_(options) {
  const int64_t E = options.embeddings.hidden_size, H = options.layer.hidden_size;
  embeddings_ = Register<NormedEmbeddings>(options.embeddings_path, options.embeddings, model);
  if (E != H || options.always_projects) {
    projection_ = Register<nn::Linear>(options.projection, E, H,
                                       Init::Normal(options.layer.initializer_range));
  }
  Tensor bias;
  if (options.num_relative_biases > 0) {
    bias = RegisterParameter(options.relative_bias + ".weight",
                             {options.num_relative_biases, options.layer.num_attention_heads},
                             Init::Normal(options.layer.initializer_range),
                             /*decays=*/false);  // as in Trainer: its name contains "bias"
  }
  if (options.relative_row) UseRelativePositions(options.relative_row, bias);
  const int64_t positions = options.embeddings.max_position_embeddings;
  if (!options.rotary.table.empty()) {
    rotary_parameter_ =
        RegisterConstant(options.rotary.table, {positions, H / options.layer.num_attention_heads},
                         Init::Sinusoids());
  } else if (!options.rotary.frequencies.empty()) {
    rotary_table_ =
        std::make_unique<DeviceConstant>([positions, frequencies = options.rotary.frequencies] {
          return RotaryTable(positions, frequencies);
        });
  }
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_.push_back(
        Register<nn::PostNormLayer>(absl::StrCat(options.layers, ".", i), options.layer));
  }
}

Tensor PostNormEncoder::Embed(const Batch& batch, const nn::ForwardContext& context) const {
  const Tensor embedded = embeddings_->Forward(batch, context);
  return projection_ == nullptr ? embedded : projection_->Forward(embedded);
}

void PostNormEncoder::ExtendContext(nn::ForwardContext& context) const {
  const bool is_computed = rotary_table_ != nullptr;
  context.rotary = {
      .table = is_computed ? rotary_table_->On(context.row_positions.device()) : rotary_parameter_,
      .pairs = options_.rotary.pairs,
      .turns_values = options_.rotary.turns_values};
}

LayerFunction PostNormEncoder::Layer(int64_t i) const {
  return
      [layer = layers_[i], site = absl::StrCat("encoder.layer.", i)](
          const Tensor& hidden_states, const nn::ForwardContext& context, bool first_tokens_only) {
        return layer->Forward(hidden_states, context, first_tokens_only, site);
      };
}

PostNormEncoderShape PostNormEncoderShapeOf(const Module& classifier,
                                            const PostNormEncoderOptions& encoder) {
  return {
      .layer = encoder.layer,
      .num_layers = encoder.num_hidden_layers,
      .num_different_layers = encoder.num_hidden_layers,
      .vocab_size = encoder.embeddings.vocab_size,
      .embedding_size = encoder.embeddings.hidden_size,
      .always_projects = encoder.always_projects,
      .relative_columns = encoder.num_relative_biases > 0 ? encoder.layer.num_attention_heads : 0,
      .num_parameters = classifier.NumParameters(),
      .table_bytes = std::ssize(encoder.rotary.frequencies) * 2 *
                     encoder.embeddings.max_position_embeddings * SizeOf(DType::kF32),
      // The head keeps its input, the dense layer's product, and dropout's result.
      .head_columns = 3 * encoder.layer.hidden_size};
}

PassMemory PostNormEncoderMemory(const Module& classifier, const PostNormEncoderOptions& encoder,
                                 const MemoryOptions& options, int64_t different_layers) {
  PostNormEncoderShape shape = PostNormEncoderShapeOf(classifier, encoder);
  if (different_layers != 0) shape.num_different_layers = different_layers;
  return PostNormEncoderMemory(shape, options);
}

}  // namespace lathe
