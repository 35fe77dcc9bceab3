#include "lathe/core/ops/heads/repeat_heads.h"

#include <algorithm>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/kernels/heads_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr const char* kOp = "repeat_heads";

template <typename T>
void Repeat(T* y, const T* x, const RepeatHeadsArgs& args) {
  const int64_t d = args.head_dim, heads = args.rows * args.heads;
#pragma omp parallel for schedule(static) if (heads * args.repeats * d > kParallelSize)
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < args.repeats; ++r) {
      std::copy_n(x + h * d, d, y + (h * args.repeats + r) * d);
    }
  }
}

template <typename T>
void RepeatGrad(T* dx, const T* dy, const RepeatHeadsArgs& args) {
  const int64_t d = args.head_dim, heads = args.rows * args.heads;
#pragma omp parallel for schedule(static) if (heads * args.repeats * d > kParallelSize)
  for (int64_t h = 0; h < heads; ++h) {
    const T* const from = dy + h * args.repeats * d;
    for (int64_t c = 0; c < d; ++c) {
      MathType<T> sum = 0;
      for (int64_t r = 0; r < args.repeats; ++r) sum += cpu::Load(from[r * d + c]);
      cpu::Store(dx[h * d + c], sum);
    }
  }
}

}  // namespace

// y_h = x_(h / repeats);  dx_k = sum_r dy_(k repeats + r)
Tensor RepeatHeads(const Tensor& x, int64_t heads, int64_t repeats) {
  Check(x.ndim() == 2 && heads >= 1 && x.dim(1) % heads == 0, kOp, "x must have shape [N, ", heads,
        " heads * d] but has ", x.shape());
  Check(repeats >= 1, kOp, "expected at least one repetition but got ", repeats);
  if (repeats == 1) return x;
  const RepeatHeadsArgs args = {x.dim(0), heads, x.dim(1) / heads, repeats};
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Tensor::Empty({x.dim(0), repeats * x.dim(1)}, x.dtype(), x.device());
    if (x.device().is_cpu()) {
      Repeat(y.data<T>(), x.data<T>(), args);
    } else {
      DeviceKernels<HeadsKernels>().repeat(y.raw_data(), x.raw_data(), x.dtype(), args);
    }
    return Record(kOp, y, {x}, {}, [args, shape = x.shape()](BackwardContext& context) {
      const Tensor& dy = context.grad_output();
      const Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
      if (dy.device().is_cpu()) {
        RepeatGrad(dx.data<T>(), dy.data<T>(), args);
      } else {
        DeviceKernels<HeadsKernels>().repeat_grad(dx.raw_data(), dy.raw_data(), dy.dtype(), args);
      }
      context.SetGrad(0, dx);
    });
  });
}

Tensor RepeatHeadsComposed(const Tensor& x, int64_t heads, int64_t repeats) {
  const int64_t d = x.dim(1) / heads;
  std::vector<Tensor> all;
  for (int64_t h = 0; h < heads * repeats; ++h) {
    const int64_t from = h / repeats * d;
    all.push_back(SliceColumns(x, from, from + d));
  }
  return ConcatColumns(all);
}

}  // namespace lathe
