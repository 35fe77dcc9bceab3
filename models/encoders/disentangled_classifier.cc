#include "lathe/models/encoders/disentangled_classifier.h"

#include <algorithm>

#include "lathe/models/encoders/disentangled_encoder.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {

std::shared_ptr<SequenceClassifier> MakeDisentangledClassifier(const PretrainedConfig& config,
                                                               uint64_t seed,
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
          .initializer_range = options.layer.layer.initializer_range});
}

PassMemory DisentangledMemory(const Module& classifier, const DisentangledOptions& encoder,
                              const MemoryOptions& options) {
  const int64_t H = encoder.layer.layer.hidden_size;
  PassMemory memory = PostNormEncoderMemory({.layer = encoder.layer.layer,
                                             .num_layers = encoder.num_hidden_layers,
                                             .num_different_layers = encoder.num_hidden_layers,
                                             .vocab_size = encoder.vocab_size,
                                             .embedding_size = encoder.embedding_size,
                                             .num_parameters = classifier.NumParameters(),
                                             .head_columns = 3 * H},
                                            options);
  if (!encoder.layer.has_distances) return memory;
  const int64_t length = std::min(options.max_seq_length, encoder.max_position_embeddings);
  const int64_t rows = DistanceRow(encoder, length - 1) - DistanceRow(encoder, 1 - length) + 1;
  const int64_t terms = encoder.layer.content_to_position + encoder.layer.position_to_content;
  // A layer keeps the normed rows in float32, the same in the compute dtype, and their projections.
  const int64_t layer = rows * H * (4 + (1 + terms) * SizeOf(options.compute_dtype));
  const int64_t layers = encoder.num_hidden_layers;
  (options.gradient_checkpointing ? memory.temporary : memory.kept) +=
      options.gradient_checkpointing ? layer : layers * layer;
  memory.inference += layer;
  return memory;
}

}  // namespace lathe
