// PostNormEncoder: NormedEmbeddings under a stack of PostNormLayers. BERT, RoBERTa, ELECTRA,
// DistilBERT, ERNIE, MPNet, RemBERT, RoFormer and NomicBERT are such encoders. They differ in
// names, sizes, positions and heads.
//
//   const ConfigReader reader(config, defaults);
//   PostNormEncoder encoder("roberta", reader.Settings(), ReadPostNormEncoderOptions(reader));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lathe/core/ops/rotary/rotary_embedding.h"
#include "lathe/models/config/config_reader.h"
#include "lathe/models/encoders/device_constant.h"
#include "lathe/models/encoders/encoder.h"
#include "lathe/models/encoders/normed_embeddings.h"
#include "lathe/models/pass_memory.h"
#include "lathe/nn/post_norm_layer.h"

namespace lathe {

// Rotary positions (core/ops/rotary/rotary_embedding.h). Their table is computed from frequencies,
// or it is a part of the checkpoint. If both are absent, there are no such positions.
struct RotaryEncoderOptions {
  RotaryPairs pairs = RotaryPairs::kHalves;
  bool turns_values = false;            // as queries and keys
  std::vector<float> frequencies = {};  // one for each pair of a head's columns
  // The path of a table that is loaded and saved, but not trained. Fresh values are the sines and
  // cosines of theta = 10,000.
  std::string table = "";
};

struct PostNormEncoderOptions {
  NormedEmbeddingsOptions embeddings;
  nn::PostNormLayerOptions layer;
  int64_t num_hidden_layers = 0;
  std::string embeddings_path = "embeddings";
  std::string layers = "encoder.layer";  // the path of the layers, which are numbered below it
  // The path of the linear layer from the embeddings' columns to the layers', where these differ.
  std::string projection = "embeddings_project";
  bool always_projects = false;  // even if the columns are the same
  // The row of attention's tables for the distance of a query and a key; null: there are no such
  // tables (Encoder::UseRelativePositions).
  std::function<int64_t(int64_t distance)> relative_row = {};
  // The path of the table of biases that all layers share, and its rows; 0: there is none.
  std::string relative_bias = "encoder.relative_attention_bias";
  int64_t num_relative_biases = 0;
  RotaryEncoderOptions rotary = {};
};

// Returns the configuration defaults of BERT. A family whose configuration has the same keys
// updates those values that differ.
nlohmann::json BertLikeConfigDefaults();

// Reads the options under the names that BERT's config.json has, and "embedding_size" if the family
// declares it. Throws for values that make no model, and for a decoder, if the family declares that
// key. If it declares "position_embedding_type", the value "relative_key" replaces the positions of
// the embeddings by a table of distances in each layer (Shaw et al. 2018). With
// "relative_key_query", keys are multiplied by that table, too (Huang et al. 2020). Transformers
// has neither since version 5.
//
// Without `check_heads`, the number of heads need not divide the number of columns.
PostNormEncoderOptions ReadPostNormEncoderOptions(const ConfigReader& reader,
                                                  bool check_heads = true);

// Returns the row of position 0 in a family whose positions follow the row of the padding token.
// Throws if no row is left for a token.
int64_t ReadFirstPosition(const ConfigReader& reader);

// Throws `path: ...` if the number of heads does not divide the number of columns.
void CheckHeads(const ConfigReader& reader, const std::string& columns_key,
                const std::string& heads_key);

// Throws `path: ...` if heads have an odd number of columns, which make no pairs.
void CheckRotaryHeads(const ConfigReader& reader, const std::string& columns_key,
                      const std::string& heads_key);

// Tells `lathe estimate-memory` what the passes of a classifier on such an encoder take.
// `different_layers` is the number of layers with weights of their own; 0: all.
PassMemory PostNormEncoderMemory(const Module& classifier, const PostNormEncoderOptions& encoder,
                                 const MemoryOptions& options, int64_t different_layers = 0);

// Returns the shape that this estimate is for, for families that change a part of it.
PostNormEncoderShape PostNormEncoderShapeOf(const Module& classifier,
                                            const PostNormEncoderOptions& encoder);

class PostNormEncoder : public Encoder {
 public:
  PostNormEncoder(const char* model, NamedSettings settings, const PostNormEncoderOptions& options);

  const PostNormEncoderOptions& options() const { return options_; }
  int64_t hidden_size() const override { return options_.layer.hidden_size; }
  int64_t num_layers() const override { return options_.num_hidden_layers; }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override;
  LayerFunction Layer(int64_t i) const override;
  void ExtendContext(nn::ForwardContext& context) const override;

  PostNormEncoderOptions options_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::shared_ptr<nn::Linear> projection_;  // null if there is none
  // At most one of these is set: the table of rotary positions.
  Tensor rotary_parameter_;
  std::unique_ptr<DeviceConstant> rotary_table_;
  std::vector<std::shared_ptr<nn::PostNormLayer>> layers_;
};

}  // namespace lathe
