// ConvBERT (Jiang et al. 2020), computed like Transformers' ConvBertForSequenceClassification. Half
// of attention's columns come from a convolution, whose kernels depend on a token and its
// neighbours. The feed-forward block may have groups of columns.
//
// Tokens outside of a sequence count as 0 in the convolutions. That is what Transformers computes
// for a text alone. In a batch it reads the hidden states of the padding, too.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/ops/activation.h"
#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/convolution/packed_convolution.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"
#include "lathe/models/rows.h"

namespace lathe {
namespace {

constexpr const char* kModel = "convbert";

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* values = new nlohmann::json(BertLikeConfigDefaults());
    values->erase("position_embedding_type");
    values->update({{"conv_kernel_size", 9},
                    {"embedding_size", 768},
                    {"head_ratio", 2},
                    {"num_groups", 1},
                    {"pad_token_id", 1}});
    return values;
  }();
  return *defaults;
}

struct ConvBertOptions {
  PostNormEncoderOptions encoder;
  int64_t heads = 1;      // of attention and of the convolution
  int64_t conv_taps = 1;  // odd
  int64_t groups = 1;     // of the feed-forward block

  int64_t columns() const { return encoder.layer.hidden_size / 2; }  // of attention's results
};

ConvBertOptions ReadOptions(const ConfigReader& reader) {
  ConvBertOptions options;
  options.encoder = ReadPostNormEncoderOptions(reader, /*check_heads=*/false);
  const nn::PostNormLayerOptions& layer = options.encoder.layer;
  const int64_t ratio = reader.Int("head_ratio", 1, 32768);
  options.heads = std::max<int64_t>(1, layer.num_attention_heads / ratio);
  if (layer.hidden_size % (2 * options.heads) != 0) {
    if (2 * options.heads == layer.num_attention_heads) {
      CheckHeads(reader, "hidden_size", "num_attention_heads");
    }
    throw WrongConfig(
        reader.path(), {"hidden_size", "num_attention_heads", "head_ratio"},
        absl::StrCat("\"hidden_size\" ", layer.hidden_size, " is not a multiple of ",
                     2 * options.heads, ", two for each head that \"num_attention_heads\" ",
                     layer.num_attention_heads, " and \"head_ratio\" ", ratio, " leave"),
        "correct one of the three");
  }
  options.conv_taps = reader.Int("conv_kernel_size", 1, 1023);
  if (options.conv_taps % 2 == 0) {
    throw WrongConfig(reader.path(), {"conv_kernel_size"},
                      absl::StrCat("\"conv_kernel_size\" must be odd but is ", options.conv_taps),
                      "correct the value");
  }
  options.groups = reader.Int("num_groups", 1, 32768);
  CheckHeads(reader, "hidden_size", "num_groups");
  CheckHeads(reader, "intermediate_size", "num_groups");
  return options;
}

// A convolution of each column, and a linear layer behind it.
class SeparableConvolution : public Module {
 public:
  SeparableConvolution(int64_t in, int64_t out, int64_t taps, Init init) {
    depthwise_ = RegisterParameter("depthwise.weight", {in, 1, taps}, init);
    pointwise_.weight = RegisterParameter("pointwise.weight", {out, in, 1}, init);
    pointwise_.bias = RegisterParameter("bias", {out, 1}, Init::Zeros(), /*decays=*/false);
  }
  // [T, in] -> [T, out], or [B, out] if first_tokens_only.
  Tensor Forward(const Tensor& x, const PackedSequences& sequences, bool first_tokens_only) const {
    const auto neighbours = [&] {
      const Tensor all = DepthwiseConvolution(x, depthwise_, sequences);
      return first_tokens_only ? nn::FirstTokens(all, sequences.cu_seqlens) : all;
    };
    return GroupedLinear(neighbours(), pointwise_);
  }

 private:
  Tensor depthwise_;
  GroupedLayer pointwise_;
};

class ConvBertSelfAttention : public Module {
 public:
  explicit ConvBertSelfAttention(const ConvBertOptions& options) : options_(options) {
    const int64_t H = options.encoder.layer.hidden_size, A = options.columns();
    const Init init = Init::Normal(options.encoder.layer.initializer_range);
    query_ = Register<nn::Linear>("query", H, A, init);
    key_ = Register<nn::Linear>("key", H, A, init);
    value_ = Register<nn::Linear>("value", H, A, init);
    conv_key_ =
        Register<SeparableConvolution>("key_conv_attn_layer", H, A, options.conv_taps, init);
    kernels_ =
        Register<nn::Linear>("conv_kernel_layer", A, options.heads * options.conv_taps, init);
    conv_value_ = Register<nn::Linear>("conv_out_layer", H, A, init);
  }

  // hidden_states: [T, H] -> [T, H], or [B, H] if first_tokens_only. The first half of the columns
  // is attention's, the second half the convolution's.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 bool first_tokens_only, const std::string& site) const {
    const PackedSequences& sequences = context.sequences;
    const Tensor q = query_->Forward(
        first_tokens_only ? nn::FirstTokens(hidden_states, sequences.cu_seqlens) : hidden_states);
    return ConcatColumns({Attend(hidden_states, q, context, first_tokens_only, site),
                          Convolve(hidden_states, q, sequences, first_tokens_only)});
  }

 private:
  Tensor Attend(const Tensor& hidden_states, const Tensor& q, const nn::ForwardContext& context,
                bool first_tokens_only, const std::string& site) const {
    const Tensor kv =
        LinearStack(hidden_states, {value_->weight, key_->weight}, {value_->bias, key_->bias});
    AttentionOptions attention;
    attention.num_heads = options_.heads;
    attention.first_query_only = first_tokens_only;
    attention.values_first = true;
    attention.dropout = context.Dropout(options_.encoder.layer.attention_probs_dropout_prob, site);
    return PackedAttention(q, kv, context.sequences, attention);
  }

  // The kernel of a token and head is softmax(W (query * conv_key)).
  Tensor Convolve(const Tensor& hidden_states, const Tensor& q, const PackedSequences& sequences,
                  bool first_tokens_only) const {
    const auto kernels = [&] {
      const Tensor scores = kernels_->Forward(
          Product(conv_key_->Forward(hidden_states, sequences, first_tokens_only), q));
      const Tensor rows =
          Reshape(Cast(scores, DType::kF32), {scores.dim(0) * options_.heads, options_.conv_taps});
      return Reshape(SoftmaxLast(rows), scores.shape());
    };
    return DynamicConvolution(conv_value_->Forward(hidden_states), kernels(), sequences,
                              {.heads = options_.heads, .first_rows_only = first_tokens_only});
  }

  // a * b. The host multiplies float32 only.
  static Tensor Product(const Tensor& a, const Tensor& b) {
    if (!a.device().is_cpu()) return Mul(a, b);
    return Cast(Mul(Cast(a, DType::kF32), Cast(b, DType::kF32)), a.dtype());
  }

  ConvBertOptions options_;
  std::shared_ptr<nn::Linear> query_, key_, value_, kernels_, conv_value_;
  std::shared_ptr<SeparableConvolution> conv_key_;
};

class ConvBertLayer : public Module {
 public:
  explicit ConvBertLayer(const ConvBertOptions& options) : options_(options.encoder.layer) {
    const int64_t H = options_.hidden_size, I = options_.intermediate_size, G = options.groups;
    const Init init = Init::Normal(options_.initializer_range);
    self_ = Register<ConvBertSelfAttention>("attention.self", options);
    attention_output_ = Register<nn::Linear>("attention.output.dense", H, H, init);
    attention_norm_ =
        Register<nn::LayerNorm>("attention.output.LayerNorm", H, options_.layer_norm_eps);
    if (G == 1) {
      intermediate_ = Register<nn::Linear>("intermediate.dense", H, I, init, options_.hidden_act);
      output_ = Register<nn::Linear>("output.dense", I, H, init);
    } else {
      constexpr GroupedWeight kInOut = GroupedWeight::kInOut;
      grouped_intermediate_ =
          Register<nn::GroupedLinear>("intermediate.dense", H, I, G, init, kInOut);
      grouped_output_ = Register<nn::GroupedLinear>("output.dense", I, H, G, init, kInOut);
    }
    output_norm_ = Register<nn::LayerNorm>("output.LayerNorm", H, options_.layer_norm_eps);
  }

  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens. `site` selects the
  // dropout masks.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 bool first_tokens_only, const std::string& site) const {
    const double p = options_.hidden_dropout_prob;
    const Tensor residual = first_tokens_only
                                ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                                : hidden_states;
    const Tensor a = attention_norm_->Forward(
        attention_output_->Forward(
            self_->Forward(hidden_states, context, first_tokens_only, site + ".attention.self")),
        residual, context.Dropout(p, site + ".attention.output", first_tokens_only));
    return output_norm_->Forward(Inner(a), a,
                                 context.Dropout(p, site + ".output", first_tokens_only));
  }

 private:
  // The feed-forward block.
  Tensor Inner(const Tensor& x) const {
    if (intermediate_ != nullptr) {
      return FeedForward(x, intermediate_->weight, intermediate_->bias, intermediate_->activation(),
                         output_->weight, output_->bias);
    }
    return grouped_output_->Forward(
        Activation(grouped_intermediate_->Forward(x), options_.hidden_act));
  }

  nn::PostNormLayerOptions options_;
  std::shared_ptr<ConvBertSelfAttention> self_;
  std::shared_ptr<nn::Linear> attention_output_;
  std::shared_ptr<nn::Linear> intermediate_, output_;                         // null with groups
  std::shared_ptr<nn::GroupedLinear> grouped_intermediate_, grouped_output_;  // null without
  std::shared_ptr<nn::LayerNorm> attention_norm_, output_norm_;
};

class ConvBertModel : public Encoder {
 public:
  explicit ConvBertModel(const ConfigReader& reader)
      : Encoder(kModel, reader.Settings()), options_(ReadOptions(reader)) {
    const PostNormEncoderOptions& o = options_.encoder;
    const int64_t E = o.embeddings.hidden_size, H = o.layer.hidden_size;
    embeddings_ = Register<NormedEmbeddings>("embeddings", o.embeddings, kModel);
    if (E != H) {
      projection_ =
          Register<nn::Linear>("embeddings_project", E, H, Init::Normal(o.layer.initializer_range));
    }
    for (int64_t i = 0; i < num_layers(); ++i) {
      layers_.push_back(Register<ConvBertLayer>(absl::StrCat("encoder.layer.", i), options_));
    }
  }

  int64_t hidden_size() const override { return options_.encoder.layer.hidden_size; }
  int64_t num_layers() const override { return options_.encoder.num_hidden_layers; }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
    CheckNoGaps(batch, kModel, "convolutions");
    const Tensor embedded = embeddings_->Forward(batch, context);
    return projection_ == nullptr ? embedded : projection_->Forward(embedded);
  }

  LayerFunction Layer(int64_t i) const override {
    return [layer = layers_[i], site = absl::StrCat("encoder.layer.", i)](
               const Tensor& hidden_states, const nn::ForwardContext& context, bool first_only) {
      return layer->Forward(hidden_states, context, first_only, site);
    };
  }

  ConvBertOptions options_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::shared_ptr<nn::Linear> projection_;  // null if there is none
  std::vector<std::shared_ptr<ConvBertLayer>> layers_;
};

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  const double dropout = reader.Probability(
      config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob");
  return std::make_shared<EncoderClassifier>(
      config, seed, kModel, std::make_shared<ConvBertModel>(reader),
      ClassifierHeadOptions{.activation = reader.Activation("hidden_act"),
                            .input_dropout = dropout,
                            .dropout = dropout,
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const ConvBertOptions conv = ReadOptions(ConfigReader(model.config(), Defaults()));
  const nn::PostNormLayerOptions& layer = conv.encoder.layer;
  const int64_t H = layer.hidden_size, I = layer.intermediate_size, A = conv.columns();
  const int64_t E = SizeOf(options.compute_dtype), rows = NumPassRows(options);
  constexpr int64_t kFloat = 4;
  PostNormEncoderShape shape = PostNormEncoderShapeOf(model, conv.encoder);
  shape.keeps_activated = conv.groups > 1;
  shape.more_columns = 2 * conv.heads * conv.conv_taps;
  shape.layer_weights =
      4 * H * A + A * conv.heads * conv.conv_taps + H * A + H * H + 2 * H * I / conv.groups;
  StackBytes bytes = PostNormEncoderStack(shape, options);
  const int64_t half = rows * A * E, kernels = rows * conv.heads * conv.conv_taps * kFloat;
  const int64_t log_sums = rows * (layer.num_attention_heads - conv.heads) * kFloat;
  // The host multiplies queries and keys of the convolution as float32.
  const int64_t factors = options.on_gpu || E == kFloat ? half : 2 * rows * A * kFloat;
  // Query, key, value and attention's result are half as wide (4 less). The inputs of the pointwise
  // layer and of the output projection (4), the product, and the values of the convolution (2) are
  // there, too.
  bytes.kept += (4 + 2 - 4) * half + factors + kernels - log_sums;
  // In the last layer, key and value are half as wide (2 less), and the values of the convolution
  // are for all tokens. They are freed when three gradients of hidden states meet.
  bytes.last_kept += (1 - 2) * half;
  bytes.last_gradients = (6 - 1) * half;
  bytes.freed += (1 - 2) * half;
  return PostNormEncoderMemory(shape, options, bytes);
}

const ArchitectureRegistration kConvBert({
    .model_type = kModel,
    .class_name = "ConvBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "convbert."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
