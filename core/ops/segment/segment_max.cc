#include "lathe/core/ops/segment/segment_max.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/kernels/segment_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/segment/check_segments.h"

namespace lathe {
namespace {

constexpr const char* kOp = "segment_max";
constexpr int64_t kBlock = 64;  // columns that a thread takes at a time

template <typename T>
void Max(T* y, int32_t* places, const T* x, const SegmentArgs& args) {
  const int64_t n = args.columns, blocks = DivideUp(n, kBlock);
#pragma omp parallel for schedule(static) if (args.rows * n > kParallelSize)
  for (int64_t item = 0; item < args.batch * blocks; ++item) {
    const int64_t b = item / blocks, first = item % blocks * kBlock;
    const int64_t count = std::min(kBlock, n - first);
    const int32_t begin = args.cu_seqlens[b], end = args.cu_seqlens[b + 1];
    MathType<T> largest[kBlock] = {};
    int32_t rows[kBlock] = {};
    std::fill_n(rows, count, begin < end ? begin : -1);
    for (int32_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < count; ++c) {
        const MathType<T> value = cpu::Load(x[r * n + first + c]);
        const bool take = r == begin || (!(value <= largest[c]) && !std::isnan(largest[c]));
        largest[c] = take ? value : largest[c];
        rows[c] = take ? r : rows[c];
      }
    }
    for (int64_t c = 0; c < count; ++c) cpu::Store(y[b * n + first + c], largest[c]);
    std::copy_n(rows, count, places + b * n + first);
  }
}

// Writes dy to its places in dx, which holds zeros.
template <typename T>
void MaxGrad(T* dx, const T* dy, const int32_t* places, const SegmentArgs& args) {
  const int64_t n = args.columns;
  for (int64_t i = 0; i < args.batch * n; ++i) {
    if (places[i] >= 0) dx[places[i] * n + i % n] = dy[i];
  }
}

}  // namespace

// y_b = max_r x_r over the rows r of sequence b;  dx_r = dy_b where x_r is the maximum, else 0
Tensor SegmentMax(const Tensor& x, const Tensor& cu_seqlens) {
  CheckSegments(kOp, x, cu_seqlens);
  const SegmentArgs args = {.cu_seqlens = cu_seqlens.data<int32_t>(),
                            .batch = cu_seqlens.numel() - 1,
                            .rows = x.dim(0),
                            .columns = x.dim(1)};
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Shape shape = {args.batch, args.columns};
    const Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
    const Tensor places = Tensor::Empty(shape, DType::kI32, x.device());
    if (x.device().is_cpu()) {
      Max(y.data<T>(), places.data<int32_t>(), x.data<T>(), args);
    } else {
      DeviceKernels<SegmentMaxKernels>().max(y.raw_data(), places.data<int32_t>(), x.raw_data(),
                                             x.dtype(), args);
    }
    // The capture of cu_seqlens keeps alive what `args` points to.
    return Record(
        kOp, y, {x}, {cu_seqlens},
        [args, places, shape_of_x = x.shape(), kept = cu_seqlens](BackwardContext& context) {
          const Tensor& dy = context.grad_output();
          const int32_t* const at = places.data<int32_t>();
          if (dy.device().is_cpu()) {
            const Tensor dx = Tensor::Zeros(shape_of_x, dy.dtype());
            MaxGrad(dx.data<T>(), dy.data<T>(), at, args);
            return context.SetGrad(0, dx);
          }
          const Tensor dx = Tensor::Empty(shape_of_x, dy.dtype(), dy.device());
          DeviceKernels<SegmentMaxKernels>().max_grad(dx.raw_data(), dy.raw_data(), at, dy.dtype(),
                                                      args);
          context.SetGrad(0, dx);
        });
  });
}

}  // namespace lathe
