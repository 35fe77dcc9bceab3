#include "lathe/models/encoders/pre_norm_encoder.h"

#include <absl/strings/str_cat.h>

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

}  // namespace lathe
