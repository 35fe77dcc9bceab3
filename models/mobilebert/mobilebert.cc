// MobileBERT (Sun et al. 2020), computed like Transformers' MobileBertForSequenceClassification.
//
// The neighbours of a token outside of its text count as 0. That is what Transformers computes for
// a text alone. In a batch it reads the embedding of the padding, too.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/unfold/unfold.h"
#include "lathe/models/architecture.h"
#include "lathe/models/config/config_reader.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"
#include "lathe/models/mobilebert/mobilebert_layer.h"
#include "lathe/models/rows.h"

namespace lathe {
namespace {

constexpr const char* kModel = "mobilebert";
constexpr int64_t kTrigram = 3;

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_probs_dropout_prob", 0.1},
                                                   {"classifier_activation", true},
                                                   {"classifier_dropout", nullptr},
                                                   {"embedding_size", 128},
                                                   {"hidden_act", "relu"},
                                                   {"hidden_dropout_prob", 0.0},
                                                   {"hidden_size", 512},
                                                   {"initializer_range", 0.02},
                                                   {"intermediate_size", 512},
                                                   {"intra_bottleneck_size", 128},
                                                   {"key_query_shared_bottleneck", true},
                                                   {"layer_norm_eps", 1e-12},
                                                   {"max_position_embeddings", 512},
                                                   {"normalization_type", "no_norm"},
                                                   {"num_attention_heads", 4},
                                                   {"num_feedforward_networks", 4},
                                                   {"num_hidden_layers", 24},
                                                   {"pad_token_id", 0},
                                                   {"trigram_input", true},
                                                   {"type_vocab_size", 2},
                                                   {"use_bottleneck", true},
                                                   {"use_bottleneck_attention", false},
                                                   {"vocab_size", 30522}};
  return *defaults;
}

// Reads which columns attention reads. Throws for bottlenecks that do not fit each other.
void ReadBottlenecks(const ConfigReader& reader, MobileBertOptions& options) {
  options.use_bottleneck = reader.Bool("use_bottleneck");
  options.use_bottleneck_attention = reader.Bool("use_bottleneck_attention");
  options.key_query_shared_bottleneck = reader.Bool("key_query_shared_bottleneck");
  const char* const inner_key = options.use_bottleneck ? "intra_bottleneck_size" : "hidden_size";
  options.inner_size = reader.Int(inner_key, 1, 32768);
  CheckHeads(reader, inner_key, "num_attention_heads");
  if (options.use_bottleneck && !options.use_bottleneck_attention &&
      !options.key_query_shared_bottleneck && options.inner_size != options.hidden_size) {
    throw WrongConfig(
        reader.path(), {"use_bottleneck_attention", "key_query_shared_bottleneck"},
        absl::StrCat("without \"use_bottleneck_attention\" and \"key_query_shared_bottleneck\", "
                     "\"intra_bottleneck_size\" ",
                     options.inner_size, " must be \"hidden_size\" ", options.hidden_size),
        "set one of the two to true");
  }
}

MobileBertOptions ReadOptions(const ConfigReader& reader) {
  constexpr int64_t kMost = 1 << 30;
  MobileBertOptions o;
  o.vocab_size = reader.Int("vocab_size", 1, kMost);
  o.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMost);
  o.type_vocab_size = reader.Int("type_vocab_size", 1, kMost);
  o.pad_token_id = reader.Int("pad_token_id");
  o.embedding_size = reader.Int("embedding_size", 1, 32768);
  o.trigram_input = reader.Bool("trigram_input");
  o.num_hidden_layers = reader.Int("num_hidden_layers", 1, 1024);
  o.hidden_size = reader.Int("hidden_size", 1, 32768);
  o.num_attention_heads = reader.Int("num_attention_heads", 1, 32768);
  ReadBottlenecks(reader, o);
  o.intermediate_size = reader.Int("intermediate_size", 1, kMost);
  o.num_feedforward_networks = reader.Int("num_feedforward_networks", 1, 1024);
  const std::string norm = reader.String("normalization_type");
  if (norm != "no_norm" && norm != "layer_norm") {
    throw WrongConfig(reader.path(), {"normalization_type"},
                      absl::StrCat("\"normalization_type\" \"", norm,
                                   "\" is unknown; known: no_norm, layer_norm"),
                      "correct the value");
  }
  o.has_layer_norms = norm == "layer_norm";
  o.hidden_act = reader.Activation("hidden_act");
  o.hidden_dropout_prob = reader.Probability("hidden_dropout_prob");
  o.attention_probs_dropout_prob = reader.Probability("attention_probs_dropout_prob");
  o.layer_norm_eps = reader.NotNegative("layer_norm_eps");
  o.initializer_range = reader.NotNegative("initializer_range");
  return o;
}

// y = dropout(norm(transformation([word[next], word[own], word[previous]]) + position +
// token_type))
class MobileBertEmbeddings : public Module {
 public:
  explicit MobileBertEmbeddings(const MobileBertOptions& options) : options_(options) {
    const int64_t H = options.hidden_size, E = options.embedding_size;
    const int64_t columns = (options.trigram_input ? kTrigram : 1) * E;
    const double std_dev = options.initializer_range;
    word_ = Register<nn::Embedding>("word_embeddings", options.vocab_size, E, std_dev,
                                    options.pad_token_id);
    position_ =
        Register<nn::Embedding>("position_embeddings", options.max_position_embeddings, H, std_dev);
    token_type_ =
        Register<nn::Embedding>("token_type_embeddings", options.type_vocab_size, H, std_dev);
    transformation_ =
        Register<nn::Linear>("embedding_transformation", columns, H, Init::Normal(std_dev));
    transforms_ = columns != H || options.trigram_input;
    if (!transforms_) {  // nothing reads it
      transformation_->weight.SetRequiresGrad(false);
      transformation_->bias.SetRequiresGrad(false);
    }
    constexpr double kEps = 1e-5;  // PyTorch's, since Transformers gives this norm none
    norm_ = Register<MobileBertNorm>("LayerNorm", H, options.has_layer_norms, kEps);
  }

  // Returns [N, H] in the compute dtype for the N rows of `context`, which belongs to `batch`.
  Tensor Forward(const Batch& batch, const nn::ForwardContext& context) const {
    CheckPositions(batch, kModel, options_.max_position_embeddings);
    if (options_.trigram_input) CheckNoGaps(batch, kModel, "trigrams");
    if (!device().is_cpu()) {  // a device's kernels don't check ids
      CheckEmbeddingIds(batch.input_ids, options_.vocab_size, 0);
      CheckEmbeddingIds(batch.token_type_ids, options_.type_vocab_size, 1);
    }
    const DropoutSpec dropout = context.Dropout(options_.hidden_dropout_prob, "embeddings");
    // Dropout comes last and takes float32 on the host.
    const Tensor normed = norm_->Forward(Words(context), Places(context));
    if (dropout.p == 0) return normed;
    return Cast(Dropout(Cast(normed, DType::kF32), dropout), compute_dtype());
  }

 private:
  Tensor Words(const nn::ForwardContext& context) const {
    Tensor x = Cast(EmbeddingSum({context.input_ids}, {word_->weight}, {word_->padding_row}),
                    compute_dtype());
    if (options_.trigram_input) {
      x = PackedUnfold(x, context.sequences, kTrigram, UnfoldOrder::kTapsReversed);
    }
    return transforms_ ? transformation_->Forward(x) : x;
  }
  Tensor Places(const nn::ForwardContext& context) const {
    return Cast(EmbeddingSum({context.row_positions, context.token_type_ids},
                             {position_->weight, token_type_->weight}),
                compute_dtype());
  }

  MobileBertOptions options_;
  std::shared_ptr<nn::Embedding> word_, position_, token_type_;
  std::shared_ptr<nn::Linear> transformation_;
  bool transforms_ = true;
  std::shared_ptr<MobileBertNorm> norm_;
};

class MobileBertModel : public Encoder {
 public:
  explicit MobileBertModel(const ConfigReader& reader)
      : Encoder(kModel, reader.Settings()), options_(ReadOptions(reader)) {
    embeddings_ = Register<MobileBertEmbeddings>("embeddings", options_);
    for (int64_t i = 0; i < num_layers(); ++i) {
      layers_.push_back(Register<MobileBertLayer>(absl::StrCat("encoder.layer.", i), options_));
    }
  }

  int64_t hidden_size() const override { return options_.hidden_size; }
  int64_t num_layers() const override { return options_.num_hidden_layers; }
  int64_t max_length() const override { return options_.max_position_embeddings; }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
    return embeddings_->Forward(batch, context);
  }

  LayerFunction Layer(int64_t i) const override {
    return [layer = layers_[i], site = absl::StrCat("encoder.layer.", i)](
               const Tensor& hidden_states, const nn::ForwardContext& context, bool first_only) {
      return layer->Forward(hidden_states, context, first_only, site);
    };
  }

  MobileBertOptions options_;
  std::shared_ptr<MobileBertEmbeddings> embeddings_;
  std::vector<std::shared_ptr<MobileBertLayer>> layers_;
};

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, kModel, std::make_shared<MobileBertModel>(reader),
      ClassifierHeadOptions{
          .dense = "mobilebert.pooler.dense",
          .output = "classifier",
          .has_dense = reader.Bool("classifier_activation"),
          .activation = ActivationKind::kTanh,
          .dropout = reader.Probability(config.has("classifier_dropout") ? "classifier_dropout"
                                                                         : "hidden_dropout_prob"),
          .initializer_range = reader.NotNegative("initializer_range")});
}

// Counts in T rows of E bytes: H columns between the layers, A inside of one, I in a feed-forward
// block.
StackBytes Stack(const MobileBertOptions& o, const MemoryOptions& options) {
  constexpr int64_t kFloat = 4;
  const int64_t E = SizeOf(options.compute_dtype), rows = NumPassRows(options);
  const int64_t H = rows * o.hidden_size * E, A = rows * o.inner_size * E;
  const int64_t I = rows * o.intermediate_size * E, words = rows * o.embedding_size * E;
  const int64_t blocks = o.num_feedforward_networks, wide = rows * o.hidden_size * kFloat;
  const int64_t activated = options.on_gpu ? 2 * I : I;
  StackBytes bytes;
  bytes.layers = o.num_hidden_layers;
  bytes.hidden = H;
  bytes.embeddings = (o.trigram_input ? kTrigram : 1) * words + 2 * H;
  bytes.embeddings_forward = std::max({4 * H, 2 * H + wide, (kTrigram + 1) * words + H});
  // The bottleneck of keys keeps the input and the output of its norm. The input's bottleneck keeps
  // its norm's output only if attention reads it.
  const bool own_bottleneck = o.use_bottleneck && o.key_query_shared_bottleneck;
  const int64_t of_keys = !o.use_bottleneck                              ? 0
                          : o.use_bottleneck_attention || own_bottleneck ? 2 * A
                                                                         : 0;
  const int64_t of_input = o.use_bottleneck && !o.use_bottleneck_attention ? A : 0;
  bytes.kept = of_keys + of_input + 4 * A + rows * o.num_attention_heads * kFloat + 2 * A +
               blocks * (activated + 2 * A) + (o.use_bottleneck ? 2 * H : 0);
  const int64_t last = of_keys + 2 * A;
  bytes.last_kept = last + options.batch_size * 3 * o.hidden_size * kFloat;
  // The gradients of key and value, and with bottlenecks those that the input gets beside them.
  bytes.last_gradients = !o.use_bottleneck ? 2 * A : o.use_bottleneck_attention ? H + 2 * A : 2 * H;
  const bool drops = !o.use_bottleneck && o.hidden_dropout_prob > 0;
  const int64_t inner = (options.on_gpu ? I : 2 * I) + (drops ? 2 * A : A);
  if (o.use_bottleneck) {
    // The peak is after the last bottleneck, or at the activation. There the bottleneck's sum and
    // output are freed already.
    bytes.freed = last + H;
    bytes.gradients = std::max(2 * H + A, inner);
  } else {
    bytes.freed = last + 2 * H;
    bytes.gradients = inner;
  }
  bytes.gradients_of_output = 3 * H;
  bytes.forward = std::max(o.use_bottleneck ? 4 * H + A : 5 * A, H + 2 * A + I);
  bytes.last_forward = H + last + 2 * A;
  return bytes;
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const MobileBertOptions o = ReadOptions(ConfigReader(model.config(), Defaults()));
  const int64_t H = o.hidden_size, A = o.inner_size, E = SizeOf(options.compute_dtype);
  CheckCountable(options, o.num_hidden_layers,
                 8 * H + 12 * A + 3 * o.embedding_size + o.num_attention_heads +
                     o.num_feedforward_networks * (4 * o.intermediate_size + 2 * A),
                 model.NumParameters());
  PassMemory memory = MemoryOfStack(Stack(o, options), options.gradient_checkpointing);
  if (E < SizeOf(DType::kF32)) {
    // Copies of the matrices that narrow activations meet: all but the tables and the head.
    for (const Parameter& p : model.Parameters()) {
      const bool in_layer = p.name.find(".encoder.") != std::string::npos;
      const bool in_embeddings = p.name.find(".embedding_transformation.") != std::string::npos;
      if ((in_layer || in_embeddings) && p.tensor.ndim() == 2 && p.tensor.requires_grad()) {
        memory.low_precision += p.tensor.numel() * E;
      }
    }
  }
  memory.word_rows = o.vocab_size;
  memory.word_columns = o.embedding_size;
  return memory;
}

const ArchitectureRegistration kMobileBert({
    .model_type = kModel,
    .class_name = "MobileBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "mobilebert."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
