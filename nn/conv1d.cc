#include "lathe/nn/conv1d.h"

#include <cmath>

namespace lathe::nn {

Conv1d::Conv1d(int64_t in, int64_t out, int64_t kernel_size, const Conv1dOptions& options,
               bool with_bias)
    : options_(options) {
  constexpr const char* kOp = "conv1d";
  Check(in >= 1 && out >= 1 && kernel_size >= 1, kOp,
        "in, out and kernel_size must be at least 1 but are ", in, ", ", out, " and ", kernel_size);
  Check(options.groups >= 1 && in % options.groups == 0 && out % options.groups == 0, kOp,
        "groups = ", options.groups, " must divide the ", in, " inputs and the ", out, " outputs");
  const int64_t channels = in / options.groups;
  const double bound = 1 / std::sqrt(static_cast<double>(channels * kernel_size));
  const Init init = Init::Uniform(-bound, bound);
  weight = RegisterParameter("weight", {out, channels, kernel_size}, init);
  if (with_bias) bias = RegisterParameter("bias", {out}, init, /*decays=*/false);
}

Tensor Conv1d::Forward(const Tensor& x, const PackedSequences& sequences) const {
  const int64_t taps = weight.dim(2);
  Check(options_.stride == 1 && options_.dilation == 1 && options_.padding == (taps - 1) / 2,
        "conv1d", "packed sequences need stride 1, dilation 1 and padding ", (taps - 1) / 2,
        " but these are ", options_.stride, ", ", options_.dilation, " and ", options_.padding);
  return PackedConv1d(x, weight, bias, sequences, options_.groups);
}

}  // namespace lathe::nn
