// DisentangledEncoder: embeddings under a stack of DisentangledLayers. DeBERTa and its second and
// third versions are such encoders.
//
//   const ConfigReader reader(config, defaults);
//   DisentangledEncoder encoder(reader.Settings(), ReadDisentangledOptions(config, reader));
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "lathe/models/config/config_reader.h"
#include "lathe/models/encoders/disentangled_layer.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/pass_memory.h"
#include "lathe/models/sequence_classifier.h"

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
  bool norms_distances = false;        // the table of distances has a layer norm
  // The table of distances has 2 * span() rows; the row of distance 0 is row span().
  int64_t span() const { return position_buckets > 0 ? position_buckets : max_relative_positions; }
};

// Returns the configuration defaults that both families share.
nlohmann::json DisentangledConfigDefaults();

// Reads the options under the names that DeBERTa's config.json has. Throws for values that make no
// model, and for a convolution or talking heads, which Lathe doesn't have.
DisentangledOptions ReadDisentangledOptions(const PretrainedConfig& config,
                                            const ConfigReader& reader);

// Returns the row for the distance of a query and a key. Transformers computes the logarithmic
// buckets with the same float32 formula.
int64_t DistanceRow(const DisentangledOptions& options, int64_t distance);

// Makes a classifier: the encoder under DeBERTa's pooler.
std::shared_ptr<SequenceClassifier> MakeDisentangledClassifier(const PretrainedConfig& config,
                                                               uint64_t seed,
                                                               const ConfigReader& reader,
                                                               const DisentangledOptions& options);

// Tells `lathe estimate-memory` what the passes of such a classifier take.
PassMemory DisentangledMemory(const Module& classifier, const DisentangledOptions& encoder,
                              const MemoryOptions& options);

class DisentangledEmbeddings : public Module {
 public:
  explicit DisentangledEmbeddings(const DisentangledOptions& options);
  // Returns [N, H] in the compute dtype for the N rows of `context`, which belongs to `batch`.
  Tensor Forward(const Batch& batch, const nn::ForwardContext& context) const;

 private:
  DisentangledOptions options_;
  std::shared_ptr<nn::Embedding> word_, position_, token_type_;  // null if there is none
  std::shared_ptr<nn::Linear> projection_;                       // null if there is none
  std::shared_ptr<nn::LayerNorm> norm_;
};

class DisentangledEncoder : public Encoder {
 public:
  DisentangledEncoder(NamedSettings settings, const DisentangledOptions& options);

  int64_t hidden_size() const override { return options_.layer.layer.hidden_size; }
  int64_t num_layers() const override { return options_.num_hidden_layers; }
  int64_t max_length() const override { return options_.max_position_embeddings; }

 private:
  // The tables for sequences of up to `length` tokens on a device. Recorded work can't copy from
  // the host, so each is made once, by the first pass that needs it.
  struct Made {
    int64_t length;
    Distances distances;
  };

  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override;
  LayerFunction Layer(int64_t i) const override;
  Distances DistancesFor(int64_t max_seqlen) const;

  DisentangledOptions options_;
  std::shared_ptr<DisentangledEmbeddings> embeddings_;
  Tensor distances_;                     // undefined without relative attention
  std::shared_ptr<nn::LayerNorm> norm_;  // of the distances; null for none
  std::vector<std::shared_ptr<DisentangledLayer>> layers_;
  mutable std::mutex mutex_;
  mutable std::vector<Made> made_;
};

}  // namespace lathe
