// PreNormEncoder: embeddings under a stack of PreNormLayers, with a norm behind the last one.
// RoBERTa-PreLayerNorm, XLM-RoBERTa-XL and Megatron-BERT are such encoders. They differ in names,
// sizes and heads, and in whether the embeddings have a norm.
//
//   const ConfigReader reader(config, defaults);
//   PreNormEncoderOptions options = {ReadPostNormEncoderOptions(reader)};
//   options.final_norm = "encoder.ln";
//   PreNormEncoder encoder("megatron-bert", reader.Settings(), options);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/models/config/config_reader.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/encoders/normed_embeddings.h"
#include "lathe/models/encoders/post_norm_encoder.h"
#include "lathe/nn/pre_norm_layer.h"

namespace lathe {

// The options of a PostNormEncoder and the path of the final norm. The embeddings have as many
// columns as the layers, so `projection` has no effect. All hidden states are float32
// (nn/pre_norm_layer.h).
struct PreNormEncoderOptions : PostNormEncoderOptions {
  std::string final_norm = "encoder.LayerNorm";
};

// Tells `lathe estimate-memory` what the passes of a classifier on such an encoder take.
PassMemory PreNormEncoderMemory(const Module& classifier, const PreNormEncoderOptions& encoder,
                                const MemoryOptions& options);

class PreNormEncoder : public Encoder {
 public:
  // Throws if the embeddings have another number of columns than the layers.
  PreNormEncoder(const char* model, NamedSettings settings, const PreNormEncoderOptions& options);

  int64_t hidden_size() const override { return options_.layer.hidden_size; }
  int64_t num_layers() const override { return options_.num_hidden_layers; }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override;
  // The last layer applies the final norm, too.
  LayerFunction Layer(int64_t i) const override;

  PreNormEncoderOptions options_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::vector<std::shared_ptr<nn::PreNormLayer>> layers_;
  std::shared_ptr<nn::LayerNorm> final_norm_;
};

}  // namespace lathe
