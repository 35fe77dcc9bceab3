#include "lathe/models/encoders/pre_norm_encoder.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {

PreNormEncoder::PreNormEncoder(const char* model, NamedSettings settings,
                               const PreNormEncoderOptions& options)
    : Encoder(model, std::move(settings)), options_(options) {
  const int64_t H = options.layer.hidden_size;
  Check(options.embeddings.hidden_size == H, model, "the embeddings have ",
        options.embeddings.hidden_size, " columns but the layers ", H);
  options_.embeddings.in_float32 = true;
  embeddings_ = Register<NormedEmbeddings>("embeddings", options_.embeddings, model);
  if (options.relative_row) UseRelativePositions(options.relative_row);
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_.push_back(
        Register<nn::PreNormLayer>(absl::StrCat(options.layers, ".", i), options.layer));
  }
  final_norm_ = Register<nn::LayerNorm>(options.final_norm, H, options.layer.layer_norm_eps);
}

Tensor PreNormEncoder::Embed(const Batch& batch, const nn::ForwardContext& context) const {
  return embeddings_->Forward(batch, context);
}

LayerFunction PreNormEncoder::Layer(int64_t i) const {
  return
      [layer = layers_[i], norm = i + 1 == num_layers() ? final_norm_ : nullptr,
       site = absl::StrCat("encoder.layer.", i)](
          const Tensor& hidden_states, const nn::ForwardContext& context, bool first_tokens_only) {
        const Tensor y = layer->Forward(hidden_states, context, first_tokens_only, site);
        return norm == nullptr ? y : norm->Forward(y);
      };
}

PassMemory PreNormEncoderMemory(const Module& classifier, const PreNormEncoderOptions& encoder,
                                const MemoryOptions& options) {
  const PostNormEncoderShape shape = PostNormEncoderShapeOf(classifier, encoder);
  StackBytes bytes = PostNormEncoderStack(shape, options);
  constexpr int64_t kFloat = 4;
  const int64_t H = encoder.layer.hidden_size, E = SizeOf(options.compute_dtype);
  const int64_t rows = NumPassRows(options);
  const int64_t narrow = rows * H * E, wide = rows * H * kFloat;  // activations, hidden states
  const int64_t inner = rows * encoder.layer.intermediate_size * E;
  bytes.hidden = wide;
  // The first layer's input is kept. If a norm makes it, the norm's input is kept as well.
  bytes.embeddings = wide;
  if (encoder.embeddings.has_norm)
    bytes.embeddings += 2 * rows * kFloat + (options.on_gpu ? 0 : wide);
  bytes.embeddings_forward = 2 * wide;
  // A post-norm layer keeps two sums and two norms of them, a pre-norm layer the sums in float32.
  bytes.kept += 2 * (wide - narrow);
  // Beside the activation function's gradients there is that of the sum, and that of the block's
  // result if it is another. A GPU has that of the block's input instead. Freed by then are the
  // last layer's norm, key and value, and this layer's output.
  const bool own_gradient = E < kFloat || encoder.layer.drops_output || options.on_gpu;
  bytes.gradients += wide + (own_gradient ? narrow : 0) - 2 * narrow;
  bytes.freed = 3 * narrow + wide;
  bytes.gradients_of_output = 3 * wide;
  bytes.last_kept += narrow;
  bytes.last_gradients = 2 * narrow;  // of key and value
  // Two hidden states come before the feed-forward block: the layer's input and its sum with
  // attention's result. Two more come last: the block's result and the layer's output.
  bytes.forward = std::max(wide + 5 * narrow, 2 * wide + std::max(2 * narrow + inner, 2 * wide));
  bytes.last_forward = wide + std::max(3 * narrow, wide + narrow);
  return PostNormEncoderMemory(shape, options, bytes);
}

}  // namespace lathe
