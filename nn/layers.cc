#include "lathe/nn/layers.h"

#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/layer_norm.h"
#include "lathe/core/ops/norm/rms_norm.h"
#include "lathe/core/ops/shape.h"

namespace lathe::nn {

GroupedLinear::GroupedLinear(int64_t in, int64_t out, int64_t groups, Init init,
                             GroupedWeight layout) {
  const bool out_in = layout == GroupedWeight::kOutIn;
  const Shape shape =
      out_in ? Shape{out, in / groups, 1} : Shape{groups, in / groups, out / groups};
  layer.weight = RegisterParameter("weight", shape, init);
  layer.bias = RegisterParameter("bias", {out}, Init::Zeros(), /*decays=*/false);
  layer.groups = groups;
  layer.layout = layout;
}

Tensor Embedding::Forward(const Tensor& ids) const {
  const Tensor rows = EmbeddingSum({ids}, {weight}, {padding_row});
  if (ids.ndim() == 1) return rows;
  Shape shape = ids.shape();
  shape.push_back(weight.dim(1));
  return Reshape(rows, shape);
}

Tensor RmsNorm::Forward(const Tensor& x) const { return lathe::RmsNorm(x, weight, eps_); }

Tensor LayerNorm::Forward(const Tensor& x) const { return lathe::LayerNorm(x, weight, bias, eps); }

Tensor LayerNorm::Forward(const Tensor& x, const Tensor& residual,
                          const DropoutSpec& dropout) const {
  return DropoutAddLayerNorm(x, residual, weight, bias, eps, dropout);
}

}  // namespace lathe::nn
