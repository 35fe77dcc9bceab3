#include "lathe/core/ops/convolution/packed_convolution.h"

#include <algorithm>
#include <span>

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/convolution/convolution.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/segment/check_segments.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/permute.h"
#include "lathe/core/ops/unfold/unfold.h"

namespace lathe {
namespace {

constexpr const char* kDepthwise = "depthwise_convolution";
constexpr const char* kDynamic = "dynamic_convolution";

// Returns the arguments for x [T, H]. Throws unless x, the weights w and the sequences, as far as
// the host knows them, fit each other.
cpu::ConvolutionArgs ArgsOf(const char* op, const Tensor& x, const Tensor& w,
                            const PackedSequences& sequences) {
  CheckSegments(op, x, sequences.cu_seqlens);
  Check(w.dtype() == MathDType(x.dtype()), op, "weights must be ", ToString(MathDType(x.dtype())),
        " for ", ToString(x.dtype()), " x but are ", ToString(w.dtype()));
  CheckSameDevice(op, x.device(), {w});
  cpu::ConvolutionArgs args;
  args.cu_seqlens = sequences.cu_seqlens.data<int32_t>();
  args.batch = sequences.size();
  args.rows = x.dim(0);
  args.columns = x.dim(1);
  return args;
}

// The kernels of an op. Their names are those of ConvolutionKernels.
template <typename T>
struct KernelsFor {
  using M = MathType<T>;
  void (*forward)(T* y, const T* x, const M* w, const cpu::ConvolutionArgs& args);
  void (*dx)(T* dx, const T* dy, const M* w, const cpu::ConvolutionArgs& args);
  void (*dw)(M* dw, const T* dy, const T* x, const cpu::ConvolutionArgs& args);
};

Tensor Convolve(const char* op, const Tensor& x, const Tensor& w, const PackedSequences& sequences,
                const cpu::ConvolutionArgs& args, bool dynamic) {
  return DispatchActivations(x, op, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    const auto& all = KernelsOf<T, cpu::ConvolutionKernels>(x.device());
    const KernelsFor<T> kernels =
        dynamic ? KernelsFor<T>{all.dynamic, all.dynamic_dx, all.dynamic_dw}
                : KernelsFor<T>{all.depthwise, all.depthwise_dx, all.depthwise_dw};
    const Tensor y = Tensor::Empty({args.out_rows(), args.columns}, x.dtype(), x.device());
    kernels.forward(y.data<T>(), x.data<T>(), w.data<M>(), args);
    // The capture of cu_seqlens keeps alive what `args` points to.
    return Record(op, y, {x, w}, {x, w},
                  [args, kernels, x = x.Detach(), w = w.Detach(),
                   kept = sequences.cu_seqlens](BackwardContext& context) {
                    const T* const dy = context.grad_output().template data<T>();
                    const auto fresh = [](const Tensor& like) {
                      return Tensor::Empty(like.shape(), like.dtype(), like.device());
                    };
                    if (context.NeedsInputGrad(0)) {
                      const Tensor dx = fresh(x);
                      kernels.dx(dx.data<T>(), dy, w.data<M>(), args);
                      context.SetGrad(0, dx);
                    }
                    if (context.NeedsInputGrad(1)) {
                      const Tensor dw = fresh(w);
                      kernels.dw(dw.data<M>(), dy, x.data<T>(), args);
                      context.SetGrad(1, dw);
                    }
                  });
  });
}

int64_t CheckedTaps(const Tensor& x, const Tensor& weight) {
  const bool fits = (weight.ndim() == 2 || (weight.ndim() == 3 && weight.dim(1) == 1)) &&
                    x.ndim() == 2 && weight.dim(0) == x.dim(1) && weight.dim(-1) >= 1;
  Check(fits, kDepthwise, "weight must have shape [H, taps] or [H, 1, taps] for x ", x.shape(),
        " but has ", weight.shape());
  return weight.dim(-1);
}

}  // namespace

Tensor DepthwiseConvolution(const Tensor& x, const Tensor& weight,
                            const PackedSequences& sequences) {
  const int64_t taps = CheckedTaps(x, weight);
  cpu::ConvolutionArgs args = ArgsOf(kDepthwise, x, weight, sequences);
  args.taps = taps;
  // Tap by tap, the weights of neighbouring columns lie together.
  const Tensor by_taps = Transpose(Reshape(weight, {x.dim(1), taps}));
  return Convolve(kDepthwise, x, by_taps, sequences, args, /*dynamic=*/false);
}

Tensor DynamicConvolution(const Tensor& x, const Tensor& kernels, const PackedSequences& sequences,
                          const DynamicConvolutionOptions& options) {
  const int64_t heads = options.heads;
  cpu::ConvolutionArgs args = ArgsOf(kDynamic, x, kernels, sequences);
  args.heads = heads;
  args.first_only = options.first_rows_only;
  Check(heads >= 1 && x.dim(1) % heads == 0, kDynamic, "the columns of x ", x.shape(),
        " don't make heads: ", heads);
  Check(kernels.ndim() == 2 && kernels.dim(0) == args.out_rows() && kernels.dim(1) >= heads &&
            kernels.dim(1) % heads == 0,
        kDynamic, "kernels must have shape [", args.out_rows(), ", ", heads, " * taps] but have ",
        kernels.shape());
  args.taps = kernels.dim(1) / heads;
  return Convolve(kDynamic, x, kernels, sequences, args, /*dynamic=*/true);
}

Tensor DepthwiseConvolutionComposed(const Tensor& x, const Tensor& weight,
                                    const PackedSequences& sequences) {
  const int64_t taps = CheckedTaps(x, weight);
  const Tensor unfolded = PackedUnfoldComposed(x, sequences, taps, UnfoldOrder::kColumns);
  const Tensor products = Mul(unfolded, Reshape(weight, {x.dim(1) * taps}));
  return Reshape(SumLast(Reshape(products, {x.numel(), taps})), x.shape());
}

Tensor DynamicConvolutionComposed(const Tensor& x, const Tensor& kernels,
                                  const PackedSequences& sequences,
                                  const DynamicConvolutionOptions& options) {
  const int64_t heads = options.heads, taps = kernels.dim(1) / heads, columns = x.dim(1);
  Tensor unfolded = PackedUnfoldComposed(x, sequences, taps, UnfoldOrder::kColumns);
  if (options.first_rows_only) {
    unfolded = GatherRows(unfolded, sequences.cu_seqlens.Slice(0, sequences.size()));
  }
  const int64_t rows = unfolded.dim(0);
  const Tensor products = Mul(Reshape(unfolded, {rows, heads, columns / heads, taps}),
                              Reshape(kernels, {rows, heads, 1, taps}));
  return Reshape(SumLast(Reshape(products, {rows * columns, taps})), {rows, columns});
}

}  // namespace lathe
