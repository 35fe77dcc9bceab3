// Encoder: embeddings under a stack of transformer layers, the part that classifiers share.
//
// A family derives from it and says how to embed a batch and what a layer computes:
//
//   class MineModel : public Encoder {
//     Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
//       return embeddings_->Forward(batch, context);
//     }
//     LayerFunction Layer(int64_t i) const override {
//       return [layer = layers_[i]](const Tensor& x, const nn::ForwardContext& context,
//                                   bool first_only) { return layer->Forward(x, context,
//                                   first_only); };
//     }
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/datasets/batch.h"
#include "lathe/models/encoders/relative_rows.h"
#include "lathe/nn/context.h"
#include "lathe/nn/module.h"

namespace lathe {

// All outputs are float32, whatever type the model computes in.
struct EncoderOutput {
  Tensor last_hidden_state;           // [T, H]; undefined if only first tokens were computed
  Tensor first_tokens;                // [B, H]: the last layer's rows of the first tokens
  std::vector<Tensor> hidden_states;  // [T, H] each, if asked for; [0] enters the first layer
  // [N, H]: last_hidden_state with the surplus rows of the context, for heads that pool by
  // cu_seqlens; undefined as that is.
  Tensor all_rows;
};

struct EncoderForwardOptions {
  bool output_hidden_states = false;
  // Computes the last layer for the first tokens alone. This is less work, and exact if the caller
  // reads nothing else. Has no effect together with output_hidden_states.
  bool first_tokens_only = false;
  bool training = false;
  uint64_t seed = 42;  // seed of the dropout masks
};

// A layer: hidden_states [N, H] -> [N, H], or [B, H] if first_tokens_only. Only the last layer is
// called with first_tokens_only. Gradient checkpointing calls a layer again in the backward pass,
// so the layer must keep alive what it uses. For the same reason it must use no computed tensor
// that requires a gradient.
using LayerFunction = std::function<Tensor(
    const Tensor& hidden_states, const nn::ForwardContext& context, bool first_tokens_only)>;

class Encoder : public Module {
 public:
  // Throws if the batch is empty.
  EncoderOutput Forward(const Batch& batch, const EncoderForwardOptions& options) const;
  // Does the same, with the context that MakeContext returns for these arguments.
  EncoderOutput Forward(const Batch& batch, const nn::ForwardContext& context,
                        const EncoderForwardOptions& options) const;
  // Returns the context that the layers of a forward pass over `batch` share. Heads with dropout
  // need it, too. It may have more rows than the batch has tokens; the tokens' rows come first.
  nn::ForwardContext MakeContext(const Batch& batch, const EncoderForwardOptions& options) const;

  const char* model() const { return model_; }  // the tag of errors, as in "[bert] ..."
  virtual int64_t hidden_size() const = 0;
  virtual int64_t num_layers() const = 0;
  // Returns the length of the longest sequence that the encoder takes.
  virtual int64_t max_length() const = 0;

 protected:
  // `model` is the tag of errors. `settings` are the configuration's keys that the encoder reads,
  // with their values (ConfigReader::Settings).
  Encoder(const char* model, NamedSettings settings)
      : model_(model), settings_(std::move(settings)) {}
  // Gives attention the row of each distance between two tokens, and a table of biases that all
  // layers share: a parameter [R, heads], or undefined. Layers may have other tables with R rows.
  // The encoder then refuses batches with padding between tokens, where Transformers counts columns
  // but Lathe has none.
  void UseRelativePositions(std::function<int64_t(int64_t distance)> row, Tensor bias = {});
  // Refuses batches with padding between tokens for another reason, such as windows of attention.
  void RefuseGaps() { refuses_gaps_ = true; }

 private:
  // Adds what the family's layers need besides, such as rotary positions.
  virtual void ExtendContext(nn::ForwardContext& /*context*/) const {}
  // Returns what enters the first layer: [N, H] for the context's N rows, in the type of the
  // layers' hidden states. That is the compute dtype, or float32.
  virtual Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const = 0;
  // Returns layer `i` of num_layers().
  virtual LayerFunction Layer(int64_t i) const = 0;
  NamedSettings OwnSettings() const override { return settings_; }

  const char* model_;
  NamedSettings settings_;
  std::unique_ptr<RelativeRows> relative_rows_;  // null without relative positions
  Tensor relative_bias_;
  bool refuses_gaps_ = false;
  mutable int64_t own_step_ = 0;  // counts training passes over batches that don't say their step
};

}  // namespace lathe
