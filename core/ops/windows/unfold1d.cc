#include "lathe/core/ops/windows/unfold1d.h"

#include <algorithm>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/windows/window_args.h"

namespace lathe {
namespace {

constexpr const char* kOp = "unfold1d";

template <typename T>
void Unfold(T* y, const T* x, const WindowArgs& args) {
  const int64_t rows = args.batch * args.out_length, width = args.channels * args.kernel;
#pragma omp parallel for schedule(static) if (rows * width > kParallelSize)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t b = row / args.out_length, o = row % args.out_length;
    for (int64_t c = 0; c < args.channels; ++c) {
      const T* const line = x + (b * args.channels + c) * args.length;
      for (int64_t t = 0; t < args.kernel; ++t) {
        const int64_t at = args.At(o, t);
        y[row * width + c * args.kernel + t] = at >= 0 && at < args.length ? line[at] : T{};
      }
    }
  }
}

template <typename T>
void UnfoldGrad(T* dx, const T* dy, const WindowArgs& args) {
  const int64_t lines = args.batch * args.channels, width = args.channels * args.kernel;
#pragma omp parallel for schedule(static) if (lines * args.length > kParallelSize)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t b = line / args.channels, c = line % args.channels;
    std::vector<MathType<T>> sums(static_cast<size_t>(args.length));
    for (int64_t o = 0; o < args.out_length; ++o) {
      const T* const from = dy + (b * args.out_length + o) * width + c * args.kernel;
      for (int64_t t = 0; t < args.kernel; ++t) {
        const int64_t at = args.At(o, t);
        if (at >= 0 && at < args.length) sums[static_cast<size_t>(at)] += cpu::Load(from[t]);
      }
    }
    for (int64_t i = 0; i < args.length; ++i) cpu::Store(dx[line * args.length + i], sums[i]);
  }
}

template <typename T>
void Swap(T* out, const T* in, int64_t batch, int64_t rows, int64_t columns) {
  constexpr int64_t kTile = 32;  // both sides of a tile stay in the nearest cache
  const int64_t down = DivideUp(rows, kTile);
#pragma omp parallel for schedule(static) if (batch * rows * columns > kParallelSize)
  for (int64_t item = 0; item < batch * down; ++item) {
    const int64_t first = item / down * rows * columns, r0 = item % down * kTile;
    const int64_t r1 = std::min(r0 + kTile, rows);
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      for (int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
        for (int64_t r = r0; r < r1; ++r) out[first + c * rows + r] = in[first + r * columns + c];
      }
    }
  }
}

}  // namespace

// y[(b, o), (c, t)] = x[b, c, at(o, t)];  dx[b, c, i] = sum of dy over at(o, t) = i
Tensor Unfold1d(const Tensor& x, int64_t kernel_size, const WindowOptions& options) {
  const WindowArgs args =
      WindowsOver(kOp, x, kernel_size, options.stride, options.padding, options.dilation);
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Tensor::Empty({args.batch * args.out_length, args.channels * args.kernel},
                                   x.dtype(), x.device());
    if (x.device().is_cpu()) {
      Unfold(y.data<T>(), x.data<T>(), args);
    } else {
      DeviceKernels<WindowsKernels>().unfold(y.raw_data(), x.raw_data(), x.dtype(), args);
    }
    return Record(kOp, y, {x}, {}, [args, shape = x.shape()](BackwardContext& context) {
      const Tensor& dy = context.grad_output();
      const Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
      if (dy.device().is_cpu()) {
        UnfoldGrad(dx.data<T>(), dy.data<T>(), args);
      } else {
        DeviceKernels<WindowsKernels>().unfold_grad(dx.raw_data(), dy.raw_data(), dy.dtype(), args);
      }
      context.SetGrad(0, dx);
    });
  });
}

// y_bcr = x_brc;  dx = dy, swapped back
Tensor SwapLast(const Tensor& x) {
  constexpr const char* kName = "swap_last";
  Check(x.ndim() == 3, kName, "x must have shape [B, R, C] but has ", x.shape());
  return DispatchActivations(x, kName, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Tensor::Empty({x.dim(0), x.dim(2), x.dim(1)}, x.dtype(), x.device());
    if (x.device().is_cpu()) {
      Swap(y.data<T>(), x.data<T>(), x.dim(0), x.dim(1), x.dim(2));
    } else {
      DeviceKernels<WindowsKernels>().swap_last(y.raw_data(), x.raw_data(), x.dtype(), x.dim(0),
                                                x.dim(1), x.dim(2));
    }
    return Record(kName, y, {x}, {}, [](BackwardContext& context) {
      context.SetGrad(0, SwapLast(context.grad_output()));
    });
  });
}

}  // namespace lathe
