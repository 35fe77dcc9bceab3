#include "lathe/nn/layers.h"

#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/layer_norm.h"
#include "lathe/core/ops/norm/rms_norm.h"

namespace lathe::nn {

Tensor Embedding::Forward(const Tensor& ids) const {
  return EmbeddingSum({ids}, {weight}, {padding_row});
}

Tensor RmsNorm::Forward(const Tensor& x) const { return lathe::RmsNorm(x, weight, eps_); }

Tensor LayerNorm::Forward(const Tensor& x) const { return lathe::LayerNorm(x, weight, bias, eps); }

Tensor LayerNorm::Forward(const Tensor& x, const Tensor& residual,
                          const DropoutSpec& dropout) const {
  return DropoutAddLayerNorm(x, residual, weight, bias, eps, dropout);
}

}  // namespace lathe::nn
