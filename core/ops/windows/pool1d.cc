#include "lathe/core/ops/windows/pool1d.h"

#include <algorithm>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/windows/pool.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/windows/window_args.h"

namespace lathe {
namespace {

// Calls body(line, o, begin, end) for each window o of each line [B * C]. The window's taps from
// `begin` to `end` - 1 lie within the line.
template <typename Body>
void ForWindows(const WindowArgs& args, Body body) {
  const int64_t lines = args.batch * args.channels;
#pragma omp parallel for schedule(static) if (lines * args.length > kParallelSize)
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t o = 0; o < args.out_length; ++o) {
      const int64_t first = args.At(o, 0);
      const int64_t begin = first >= 0 ? 0 : (-first + args.dilation - 1) / args.dilation;
      const int64_t end = args.length <= first ? 0 : (args.length - 1 - first) / args.dilation + 1;
      body(line, o, begin, std::max(begin, std::min(end, args.kernel)));
    }
  }
}

template <typename T>
void MaxForward(T* y, int32_t* places, const T* x, const WindowArgs& args) {
  const auto max = KernelsOf<T, cpu::PoolKernels>(Device{}).max;
  const cpu::PoolLine pool = {args.length, args.out_length, args.kernel,
                              args.stride, args.padding,    args.dilation};
  const int64_t lines = args.batch * args.channels;
#pragma omp parallel for schedule(static) if (lines * args.length > kParallelSize)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t to = line * args.out_length;
    max(y + to, places + to, x + line * args.length, pool);
  }
}

template <typename T>
void MeanForward(T* y, const T* x, const WindowArgs& args) {
  ForWindows(args, [&](int64_t line, int64_t o, int64_t begin, int64_t end) {
    MathType<T> sum = 0;
    for (int64_t t = begin; t < end; ++t) sum += cpu::Load(x[line * args.length + args.At(o, t)]);
    const int64_t divisor = args.count_padding ? args.kernel : end - begin;
    cpu::Store(y[line * args.out_length + o], sum / static_cast<MathType<T>>(divisor));
  });
}

// Calls add(sums, line) for each line. It adds to the sums of the line's elements, which are then
// stored in dx.
template <typename T, typename Add>
void Backward(T* dx, const WindowArgs& args, Add add) {
  using M = MathType<T>;
  const int64_t lines = args.batch * args.channels;
#pragma omp parallel if (lines * args.length > kParallelSize)
  {
    std::vector<M> sums(static_cast<size_t>(args.length));
#pragma omp for schedule(static)
    for (int64_t line = 0; line < lines; ++line) {
      std::fill(sums.begin(), sums.end(), M(0));
      add(sums.data(), line);
      for (int64_t i = 0; i < args.length; ++i) cpu::Store(dx[line * args.length + i], sums[i]);
    }
  }
}

template <typename T>
void MaxBackward(T* dx, const T* dy, const int32_t* places, const WindowArgs& args) {
  Backward(dx, args, [&](auto* sums, int64_t line) {
    const int64_t first = line * args.out_length;
    for (int64_t o = first; o < first + args.out_length; ++o) {
      if (places[o] >= 0) sums[places[o]] += cpu::Load(dy[o]);
    }
  });
}

template <typename T>
void MeanBackward(T* dx, const T* dy, const WindowArgs& args) {
  WindowArgs line_args = args;
  line_args.batch = line_args.channels = 1;
  Backward(dx, args, [&](auto* sums, int64_t line) {
    ForWindows(line_args, [&](int64_t, int64_t o, int64_t begin, int64_t end) {
      const auto divisor = static_cast<MathType<T>>(args.count_padding ? args.kernel : end - begin);
      const MathType<T> share = cpu::Load(dy[line * args.out_length + o]) / divisor;
      for (int64_t t = begin; t < end; ++t) sums[args.At(o, t)] += share;
    });
  });
}

WindowArgs ArgsOf(const char* op, const Tensor& x, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation) {
  const WindowArgs args =
      WindowsOver(op, x, kernel, stride == 0 ? kernel : stride, padding, dilation);
  Check(2 * padding <= kernel, op, "padding must be at most half of kernel_size, ", kernel,
        ", but is ", padding);
  Check(args.length > 0, op, "x of shape ", x.shape(), " has no elements along L");
  return args;
}

}  // namespace

// y_o = max_t x_(o, t);  dx_i = sum of dy_o over the windows whose maximum is x_i
Tensor MaxPool1d(const Tensor& x, const MaxPool1dOptions& options) {
  constexpr const char* kOp = "max_pool1d";
  const WindowArgs args =
      ArgsOf(kOp, x, options.kernel_size, options.stride, options.padding, options.dilation);
  const Shape shape = {args.batch, args.channels, args.out_length};
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
    const Tensor places = Tensor::Empty(shape, DType::kI32, x.device());
    if (x.device().is_cpu()) {
      MaxForward(y.data<T>(), places.data<int32_t>(), x.data<T>(), args);
    } else {
      DeviceKernels<WindowsKernels>().max(y.raw_data(), places.data<int32_t>(), x.raw_data(),
                                          x.dtype(), args);
    }
    return Record(kOp, y, {x}, {}, [args, places, shape = x.shape()](BackwardContext& context) {
      const Tensor& dy = context.grad_output();
      const Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
      const int32_t* const at = places.data<int32_t>();
      if (dy.device().is_cpu()) {
        MaxBackward(dx.data<T>(), dy.data<T>(), at, args);
      } else {
        DeviceKernels<WindowsKernels>().max_grad(dx.raw_data(), dy.raw_data(), at, dy.dtype(),
                                                 args);
      }
      context.SetGrad(0, dx);
    });
  });
}

// y_o = sum_t x_(o, t) / n_o;  dx_i = sum of dy_o / n_o over the windows that hold x_i
Tensor AvgPool1d(const Tensor& x, const AvgPool1dOptions& options) {
  constexpr const char* kOp = "avg_pool1d";
  WindowArgs args = ArgsOf(kOp, x, options.kernel_size, options.stride, options.padding, 1);
  args.count_padding = options.count_include_pad;
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y =
        Tensor::Empty({args.batch, args.channels, args.out_length}, x.dtype(), x.device());
    if (x.device().is_cpu()) {
      MeanForward(y.data<T>(), x.data<T>(), args);
    } else {
      DeviceKernels<WindowsKernels>().mean(y.raw_data(), x.raw_data(), x.dtype(), args);
    }
    return Record(kOp, y, {x}, {}, [args, shape = x.shape()](BackwardContext& context) {
      const Tensor& dy = context.grad_output();
      const Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
      if (dy.device().is_cpu()) {
        MeanBackward(dx.data<T>(), dy.data<T>(), args);
      } else {
        DeviceKernels<WindowsKernels>().mean_grad(dx.raw_data(), dy.raw_data(), dy.dtype(), args);
      }
      context.SetGrad(0, dx);
    });
  });
}

}  // namespace lathe
