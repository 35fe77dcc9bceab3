#include "lathe/models/encoders/disentangled/disentangled_classifier.h"

#include <algorithm>
#include <memory>

#include "lathe/models/classification_loss.h"
#include "lathe/models/encoders/disentangled/disentangled_encoder.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

std::shared_ptr<SequenceClassifier> MakeClassifier(const PretrainedConfig& config, uint64_t seed,
                                                   const ConfigReader& reader,
                                                   const DisentangledOptions& options) {
  const bool own_rate = config.GetOptionalDouble("cls_dropout").has_value();
  return std::make_shared<EncoderClassifier>(
      config, seed, "deberta", std::make_shared<DisentangledEncoder>(reader.Settings(), options),
      ClassifierHeadOptions{
          .dense = "pooler.dense",
          .output = "classifier",
          .activation = reader.Activation("pooler_hidden_act"),
          .input_dropout = reader.Probability("pooler_dropout"),
          .dropout = reader.Probability(own_rate ? "cls_dropout" : "hidden_dropout_prob"),
          .initializer_range = options.layer.layer.initializer_range,
          .loss = SoftClassificationLoss});
}

constexpr int64_t kFloat = 4;

// Returns the columns of the tables of distances, each of which talking heads have several times.
int64_t RelativeColumns(const DisentangledOptions& encoder) {
  const DisentangledLayerOptions& layer = encoder.layer;
  if (!layer.has_distances) return 0;
  const int64_t terms = layer.content_to_position + layer.position_to_content;
  return terms * layer.layer.hidden_size *
         (layer.talking_heads ? layer.layer.num_attention_heads : 1);
}

// Bytes of what DeBERTa's attention takes beside BERT's in one layer, whatever the tokens.
int64_t AttentionExtras(const DisentangledOptions& encoder, const MemoryOptions& options) {
  const DisentangledLayerOptions& layer = encoder.layer;
  const int64_t H = layer.layer.hidden_size, E = SizeOf(options.compute_dtype);
  int64_t bytes = 0;
  if (layer.fused_projections) {
    // The three projections are taken apart in each pass, and copied if activations are narrow.
    bytes += 3 * H * H * (kFloat + (E < kFloat ? E : 0));
  }
  if (layer.has_distances) {
    const int64_t length = std::min(options.max_seq_length, encoder.max_position_embeddings);
    const int64_t rows = DistanceRow(encoder, length - 1) - DistanceRow(encoder, 1 - length) + 1;
    const int64_t terms = layer.content_to_position + layer.position_to_content;
    const int64_t copies = layer.talking_heads ? layer.layer.num_attention_heads : 1;
    // The normed rows in float32, the same in the compute dtype, and their projections. Talking
    // heads multiply those of queries in float32.
    bytes += rows * H * (kFloat + (1 + terms * copies) * E);
    if (layer.talking_heads && layer.position_to_content) bytes += rows * H * kFloat;
  }
  return bytes;
}

// Bytes of activations around attention without a backward pass: the layer's input, queries, keys,
// values and the result. Talking heads have the last four once for each head, too, and multiply
// queries in float32.
int64_t AttentionForward(const DisentangledOptions& encoder, const MemoryOptions& options) {
  const nn::PostNormLayerOptions& layer = encoder.layer.layer;
  const int64_t E = SizeOf(options.compute_dtype);
  const int64_t hidden = NumPassRows(options) * layer.hidden_size * E;
  if (!encoder.layer.talking_heads) return 5 * hidden;
  const int64_t wide = E < kFloat ? NumPassRows(options) * layer.hidden_size * kFloat : 0;
  return (4 + 4 * layer.num_attention_heads) * hidden + wide;
}

// Adds what talking heads take. Their attention has all columns in each of its n heads.
void AddTalkingHeads(const DisentangledOptions& encoder, const MemoryOptions& options,
                     StackBytes& bytes) {
  const nn::PostNormLayerOptions& layer = encoder.layer.layer;
  const int64_t n = layer.num_attention_heads, hidden = bytes.hidden;
  const int64_t wide = NumPassRows(options) * layer.hidden_size * kFloat;
  const int64_t inner = NumPassRows(options) * layer.intermediate_size *
                        SizeOf(options.compute_dtype) * (options.on_gpu ? 2 : 1);
  // BERT keeps queries, keys, values and the result (4). Here these four exist in each head, and
  // the mixed result beside them. The factors of the mixes are float32: a result in each head, and
  // the queries.
  bytes.kept += (4 * n + 1 - 4) * hidden + (n + 1) * wide;
  // The last layer has keys and values of all tokens. Their gradients are as large.
  bytes.last_kept += 2 * (n - 1) * hidden;
  bytes.last_gradients += 2 * (n - 1) * hidden;
  bytes.freed += 2 * (n - 1) * hidden;
  // The other peak is at attention: its result's gradient and three more, and the residual's. The
  // feed-forward block, the norm before it and the parts of the result are freed by then.
  bytes.gradients = std::max(bytes.gradients, (4 * n + 1) * hidden - inner - 3 * hidden - n * wide);
}

// Bytes of narrow copies of weights, more or less than BERT has.
int64_t NarrowExtras(const DisentangledOptions& encoder) {
  const int64_t H = encoder.layer.layer.hidden_size;
  int64_t elements = 0;
  if (encoder.layer.fused_projections) {
    elements -= encoder.num_hidden_layers * 3 * H * H;  // each pass copies its own parts
  }
  if (encoder.layer.has_distances && !encoder.layer.shares_projections) {
    const int64_t terms = encoder.layer.content_to_position + encoder.layer.position_to_content;
    elements += encoder.num_hidden_layers * terms * H * H;
  }
  elements += H * (H / encoder.conv_groups) * encoder.conv_kernel_size;
  return elements * SizeOf(DType::kBF16);
}

// Adds what the convolution beside the first layer takes.
void AddConvolution(const DisentangledOptions& encoder, const MemoryOptions& options,
                    PassMemory& memory) {
  const nn::PostNormLayerOptions& layer = encoder.layer.layer;
  const int64_t taps = encoder.conv_kernel_size;
  const int64_t row = NumPassRows(options) * SizeOf(options.compute_dtype);
  const int64_t hidden = row * layer.hidden_size, inner = row * layer.intermediate_size;
  // The neighbours of each token, the activation function's input, and the sum before the norm.
  const int64_t kept = (taps + 2) * hidden;
  memory.inference = std::max(memory.inference, (taps + 3) * hidden);
  if (!options.gradient_checkpointing) {
    memory.kept += kept;
    return;
  }
  // When the first layer is computed again, the inputs of the others are freed. The gradients of
  // the sum, of the activation function's input and of the neighbours come on top.
  const int64_t first = 8 * hidden + (options.on_gpu ? 2 : 1) * inner + kept + (2 + taps) * hidden -
                        (encoder.num_hidden_layers - 1) * hidden;
  memory.temporary = std::max(memory.temporary, first);
}

PassMemory MemoryOf(const Module& classifier, const DisentangledOptions& encoder,
                    const MemoryOptions& options) {
  const nn::PostNormLayerOptions& layer = encoder.layer.layer;
  const int64_t H = layer.hidden_size, layers = encoder.num_hidden_layers;
  const int64_t copies = encoder.layer.talking_heads ? 9 * layer.num_attention_heads : 0;
  const PostNormEncoderShape shape = {.layer = layer,
                                      .num_layers = layers,
                                      .num_different_layers = layers,
                                      .vocab_size = encoder.vocab_size,
                                      .embedding_size = encoder.embedding_size,
                                      .more_columns = (2 * encoder.conv_kernel_size + copies) * H,
                                      .relative_columns = RelativeColumns(encoder),
                                      .num_parameters = classifier.NumParameters(),
                                      .head_columns = 3 * H};
  StackBytes bytes = PostNormEncoderStack(shape, options);
  if (encoder.layer.talking_heads) AddTalkingHeads(encoder, options, bytes);
  // Each layer has extras of its own. Those of the last one are freed with it.
  const int64_t extras = AttentionExtras(encoder, options);
  bytes.kept += extras;
  bytes.last_kept += extras;
  bytes.freed += extras;
  PassMemory memory = PostNormEncoderMemory(shape, options, bytes);
  memory.inference = std::max(memory.inference, AttentionForward(encoder, options) + extras);
  if (encoder.conv_kernel_size > 0) AddConvolution(encoder, options, memory);
  if (options.compute_dtype != DType::kF32) memory.low_precision += NarrowExtras(encoder);
  return memory;
}

}  // namespace

Architecture DisentangledArchitecture(const std::string& model_type, const std::string& class_name,
                                      const nlohmann::json& defaults, ReadDisentangled read) {
  return {.model_type = model_type,
          .class_name = class_name,
          .make =
              [&defaults, read](const PretrainedConfig& config, uint64_t seed) {
                const ConfigReader reader(config, defaults);
                return MakeClassifier(config, seed, reader, read(config, reader));
              },
          .names = {.base_prefix = "deberta.",
                    .head_prefixes = {"pooler.", "classifier."},
                    // Checkpoints may hold positions that "position_biased_input" leaves out.
                    .buffers = {"position_ids", "position_embeddings.weight"}},
          .config_defaults = defaults,
          .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "cls_dropout",
                           "pooler_dropout"},
          .pass_memory =
              [&defaults, read](const SequenceClassifier& model, const MemoryOptions& options) {
                const PretrainedConfig& config = model.config();
                return MemoryOf(model, read(config, ConfigReader(config, defaults)), options);
              }};
}

}  // namespace lathe
