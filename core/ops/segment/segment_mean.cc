#include "lathe/core/ops/segment/segment_mean.h"

#include <algorithm>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/kernels/segment_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/segment/check_segments.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr const char* kOp = "segment_mean";
constexpr int64_t kBlock = 64;  // columns that a thread adds up at a time

template <typename T>
void Mean(T* y, const T* x, const SegmentArgs& args) {
  const int64_t n = args.columns, blocks = (n + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) if (args.rows * n > kParallelSize)
  for (int64_t item = 0; item < args.batch * blocks; ++item) {
    const int64_t b = item / blocks, first = item % blocks * kBlock;
    const int64_t count = std::min(kBlock, n - first);
    const int64_t begin = args.cu_seqlens[b], end = args.cu_seqlens[b + 1];
    double sums[kBlock] = {};
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < count; ++c) sums[c] += cpu::Load(x[r * n + first + c]);
    }
    for (int64_t c = 0; c < count; ++c) {
      const double mean = end > begin ? sums[c] / static_cast<double>(end - begin) : 0;
      cpu::Store(y[b * n + first + c], static_cast<MathType<T>>(mean));
    }
  }
}

template <typename T>
void MeanGrad(T* dx, const T* dy, const SegmentArgs& args) {
  const int64_t n = args.columns;
#pragma omp parallel for schedule(static) if (args.rows * n > kParallelSize)
  for (int64_t r = 0; r < args.rows; ++r) {
    const int32_t* const last = args.cu_seqlens + args.batch + 1;
    const int32_t* const end = std::upper_bound(args.cu_seqlens, last, r);
    if (end == last) {
      std::fill_n(dx + r * n, n, T{});
      continue;
    }
    const auto length = static_cast<MathType<T>>(*end - end[-1]);
    const T* const from = dy + (end - args.cu_seqlens - 1) * n;
    for (int64_t c = 0; c < n; ++c) cpu::Store(dx[r * n + c], cpu::Load(from[c]) / length);
  }
}

}  // namespace

// y_b = sum_r x_r / length_b over the rows r of sequence b;  dx_r = dy_b / length_b
Tensor SegmentMean(const Tensor& x, const Tensor& cu_seqlens) {
  CheckSegments(kOp, x, cu_seqlens);
  const SegmentArgs args = {.cu_seqlens = cu_seqlens.data<int32_t>(),
                            .batch = cu_seqlens.numel() - 1,
                            .rows = x.dim(0),
                            .columns = x.dim(1)};
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Tensor::Empty({args.batch, args.columns}, x.dtype(), x.device());
    if (x.device().is_cpu()) {
      Mean(y.data<T>(), x.data<T>(), args);
    } else {
      DeviceKernels<SegmentKernels>().mean(y.raw_data(), x.raw_data(), x.dtype(), args);
    }
    // The capture of cu_seqlens keeps alive what `args` points to.
    return Record(kOp, y, {x}, {cu_seqlens},
                  [args, shape = x.shape(), kept = cu_seqlens](BackwardContext& context) {
                    const Tensor& dy = context.grad_output();
                    const Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
                    if (dy.device().is_cpu()) {
                      MeanGrad(dx.data<T>(), dy.data<T>(), args);
                    } else {
                      DeviceKernels<SegmentKernels>().mean_grad(dx.raw_data(), dy.raw_data(),
                                                                dy.dtype(), args);
                    }
                    context.SetGrad(0, dx);
                  });
  });
}

Tensor SegmentMeanComposed(const Tensor& x, const Tensor& cu_seqlens) {
  const std::vector<int32_t> cu = cu_seqlens.ToVector<int32_t>();
  std::vector<Tensor> means;
  for (size_t b = 0; b + 1 < cu.size(); ++b) {
    const int64_t length = cu[b + 1] - cu[b];
    const Tensor weights = Tensor::Full(
        {1, length}, 1 / std::max<double>(1, static_cast<double>(length)), x.dtype(), x.device());
    means.push_back(MatrixProduct(weights, SliceRows(x, cu[b], cu[b + 1])));
  }
  // The rest of x gives no row of the result.
  means.push_back(SliceRows(x, 0, 0));
  return ConcatRows(means);
}

}  // namespace lathe
