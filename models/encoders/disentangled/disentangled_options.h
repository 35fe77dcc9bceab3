// The options of DeBERTa's encoder, and how config.json gives them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "lathe/models/config/config_reader.h"
#include "lathe/models/encoders/disentangled/disentangled_layer.h"

namespace lathe {

struct DisentangledOptions {
  DisentangledLayerOptions layer;
  int64_t num_hidden_layers = 0;
  int64_t vocab_size = 0, max_position_embeddings = 0, type_vocab_size = 0;
  int64_t embedding_size = 0;  // columns of the embeddings' tables
  int64_t pad_token_id = 0;
  bool adds_positions = true;
  int64_t position_buckets = -1;       // not positive: each distance has a row of its own
  int64_t max_relative_positions = 0;  // the greatest distance, and the span without buckets
  // Transformers keeps the table of distances even if no term reads it (layer.has_distances).
  bool has_distance_table = false;
  bool norms_distances = false;  // the table of distances has a layer norm
  int64_t conv_kernel_size = 0;  // 0: there is no convolution (DisentangledConvolution)
  int64_t conv_groups = 1;
  ActivationKind conv_act = ActivationKind::kTanh;
  // The table of distances has 2 * span() rows; the row of distance 0 is row span().
  int64_t span() const { return position_buckets > 0 ? position_buckets : max_relative_positions; }
};

// Returns the configuration defaults that both families share.
nlohmann::json DisentangledConfigDefaults();

// Reads the options under the names that DeBERTa's config.json has. A family that declares
// "conv_kernel_size" may have a convolution, one that declares "talking_head" talking heads. Throws
// for values that make no model.
DisentangledOptions ReadDisentangledOptions(const PretrainedConfig& config,
                                            const ConfigReader& reader);

// Returns the row for the distance of a query and a key. Transformers computes the logarithmic
// buckets with the same float32 formula.
int64_t DistanceRow(const DisentangledOptions& options, int64_t distance);

}  // namespace lathe
