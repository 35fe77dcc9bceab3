// DisentangledEncoder: embeddings under a stack of DisentangledLayers. DeBERTa and its second and
// third versions are such encoders.
//
//   const ConfigReader reader(config, defaults);
//   DisentangledEncoder encoder(reader.Settings(), ReadDisentangledOptions(config, reader));
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lathe/models/encoders/disentangled/disentangled_options.h"
#include "lathe/models/encoders/encoder.h"

namespace lathe {

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

// The convolution beside the first layer:
//
//   y = LayerNorm(layer + act(dropout(conv(embedded))))
//
// conv reads no token of another sequence.
class DisentangledConvolution : public Module {
 public:
  explicit DisentangledConvolution(const DisentangledOptions& options);
  // embedded: [T, H], what enters the layer; layer: [T, H], what it gives. Returns [T, H]. With
  // first_tokens_only `layer` and the result have the rows of first tokens.
  Tensor Forward(const Tensor& embedded, const Tensor& layer, const nn::ForwardContext& context,
                 bool first_tokens_only) const;

 private:
  DisentangledOptions options_;
  GroupedLayer conv_;
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
  Tensor distances_;                                      // undefined without relative attention
  std::shared_ptr<nn::LayerNorm> norm_;                   // of the distances; null for none
  std::shared_ptr<DisentangledConvolution> convolution_;  // null for none
  std::vector<std::shared_ptr<DisentangledLayer>> layers_;
  mutable std::mutex mutex_;
  mutable std::vector<Made> made_;
};

}  // namespace lathe
