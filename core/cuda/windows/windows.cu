// Windows along the last dimension: unfolding and pooling. WindowsKernels in
// core/kernels/windows/windows_kernels.h describes the kernels.
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/windows/windows_kernels.h"

namespace lathe::cuda {
namespace {

// Calls body(o) for each window whose tap t holds element i, for all t, in the order of t.
template <typename Body>
__device__ void ForWindowsWith(const WindowArgs& args, int64_t i, Body body) {
  for (int64_t t = 0; t < args.kernel; ++t) {
    const int64_t at = i + args.padding - t * args.dilation;
    if (at >= 0 && at % args.stride == 0 && at / args.stride < args.out_length)
      body(at / args.stride, t);
  }
}

// Returns how many elements the mean of window o divides by.
__device__ int64_t Divisor(const WindowArgs& args, int64_t o) {
  if (args.count_padding) return args.kernel;
  int64_t count = 0;
  for (int64_t t = 0; t < args.kernel; ++t) {
    const int64_t at = args.At(o, t);
    count += at >= 0 && at < args.length ? 1 : 0;
  }
  return count;
}

template <typename T>
__global__ void UnfoldWindows(T* y, const T* x, WindowArgs args, int64_t n) {
  const int64_t width = args.channels * args.kernel;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const int64_t row = i / width, c = i % width / args.kernel, t = i % args.kernel;
    const int64_t b = row / args.out_length, at = args.At(row % args.out_length, t);
    y[i] = at >= 0 && at < args.length ? x[(b * args.channels + c) * args.length + at] : T{};
  }
}

template <typename T>
__global__ void UnfoldWindowsGrad(T* dx, const T* dy, WindowArgs args, int64_t n) {
  const int64_t width = args.channels * args.kernel;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const int64_t line = i / args.length, b = line / args.channels, c = line % args.channels;
    float sum = 0;
    ForWindowsWith(args, i % args.length, [&](int64_t o, int64_t t) {
      sum += Load(dy[(b * args.out_length + o) * width + c * args.kernel + t]);
    });
    Store(dx[i], sum);
  }
}

template <typename T>
__global__ void MaxWindows(T* y, int32_t* places, const T* x, WindowArgs args, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const T* const line = x + i / args.out_length * args.length;
    int64_t place = -1;
    float largest = -INFINITY;  // of a window of padding alone
    for (int64_t t = 0; t < args.kernel; ++t) {
      const int64_t at = args.At(i % args.out_length, t);
      if (at < 0 || at >= args.length) continue;
      const float value = Load(line[at]);
      if (place >= 0 && !(value > largest) && value == value) continue;
      place = at;
      largest = value;
    }
    Store(y[i], largest);
    places[i] = static_cast<int32_t>(place);
  }
}

template <typename T>
__global__ void MaxWindowsGrad(T* dx, const T* dy, const int32_t* places, WindowArgs args,
                               int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const int64_t first = i / args.length * args.out_length, at = i % args.length;
    float sum = 0;
    ForWindowsWith(args, at, [&](int64_t o, int64_t) {
      if (places[first + o] == at) sum += Load(dy[first + o]);
    });
    Store(dx[i], sum);
  }
}

template <typename T>
__global__ void MeanWindows(T* y, const T* x, WindowArgs args, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const T* const line = x + i / args.out_length * args.length;
    const int64_t o = i % args.out_length;
    float sum = 0;
    for (int64_t t = 0; t < args.kernel; ++t) {
      const int64_t at = args.At(o, t);
      if (at >= 0 && at < args.length) sum += Load(line[at]);
    }
    Store(y[i], sum / static_cast<float>(Divisor(args, o)));
  }
}

template <typename T>
__global__ void MeanWindowsGrad(T* dx, const T* dy, WindowArgs args, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const int64_t first = i / args.length * args.out_length;
    float sum = 0;
    ForWindowsWith(args, i % args.length, [&](int64_t o, int64_t) {
      sum += Load(dy[first + o]) / static_cast<float>(Divisor(args, o));
    });
    Store(dx[i], sum);
  }
}

// A block of (32, 8) threads moves a square of 32 x 32 elements by way of shared memory. T is a
// number of the elements' size.
constexpr int kSide = 32, kThreadRows = 8;

template <typename T>
__global__ void SwapKernel(T* out, const T* in, int64_t batch, int64_t rows, int64_t columns) {
  __shared__ T square[kSide][kSide + 1];
  const int64_t down = (rows + kSide - 1) / kSide, across = (columns + kSide - 1) / kSide;
  for (int64_t item = blockIdx.x; item < batch * down * across; item += gridDim.x) {
    const int64_t first = item / (down * across) * rows * columns;
    const int64_t r0 = item / across % down * kSide, c0 = item % across * kSide;
    for (int r = threadIdx.y; r < kSide; r += kThreadRows) {
      const int64_t row = r0 + r, column = c0 + threadIdx.x;
      if (row < rows && column < columns)
        square[r][threadIdx.x] = in[first + row * columns + column];
    }
    __syncthreads();
    for (int c = threadIdx.y; c < kSide; c += kThreadRows) {
      const int64_t row = r0 + threadIdx.x, column = c0 + c;
      if (row < rows && column < columns) out[first + column * rows + row] = square[threadIdx.x][c];
    }
    __syncthreads();  // the square has been read
  }
}

// Calls launch(T{}) unless there is nothing to write.
template <typename Launch>
void Run(DType type, int64_t n, Launch launch) {
  if (n > 0) DispatchNumbers("windows", type, launch);
}

int64_t Inputs(const WindowArgs& args) { return args.batch * args.channels * args.length; }
int64_t Outputs(const WindowArgs& args) { return args.batch * args.channels * args.out_length; }

void Unfold(void* y, const void* x, DType type, const WindowArgs& args) {
  const int64_t n = Outputs(args) * args.kernel;
  Run(type, n, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(UnfoldWindows<T>, GridFor(n), kBlock, 0, static_cast<T*>(y),
                 static_cast<const T*>(x), args, n);
  });
}

void UnfoldGrad(void* dx, const void* dy, DType type, const WindowArgs& args) {
  const int64_t n = Inputs(args);
  Run(type, n, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(UnfoldWindowsGrad<T>, GridFor(n), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), args, n);
  });
}

void Max(void* y, int32_t* places, const void* x, DType type, const WindowArgs& args) {
  const int64_t n = Outputs(args);
  Run(type, n, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MaxWindows<T>, GridFor(n), kBlock, 0, static_cast<T*>(y), places,
                 static_cast<const T*>(x), args, n);
  });
}

void MaxGrad(void* dx, const void* dy, const int32_t* places, DType type, const WindowArgs& args) {
  const int64_t n = Inputs(args);
  Run(type, n, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MaxWindowsGrad<T>, GridFor(n), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), places, args, n);
  });
}

void Mean(void* y, const void* x, DType type, const WindowArgs& args) {
  const int64_t n = Outputs(args);
  Run(type, n, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MeanWindows<T>, GridFor(n), kBlock, 0, static_cast<T*>(y),
                 static_cast<const T*>(x), args, n);
  });
}

void MeanGrad(void* dx, const void* dy, DType type, const WindowArgs& args) {
  const int64_t n = Inputs(args);
  Run(type, n, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(MeanWindowsGrad<T>, GridFor(n), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), args, n);
  });
}

void SwapLast(void* out, const void* in, DType type, int64_t batch, int64_t rows, int64_t columns) {
  if (batch * rows * columns == 0) return;
  const dim3 grid = GridFor(batch * DivideUp(rows, kSide) * DivideUp(columns, kSide), 1);
  const auto launch = [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(SwapKernel<T>, grid, dim3(kSide, kThreadRows), 0, static_cast<T*>(out),
                 static_cast<const T*>(in), batch, rows, columns);
  };
  SizeOf(type) == 2 ? launch(uint16_t{}) : launch(uint32_t{});
}

const WindowsKernels table = {Unfold, UnfoldGrad, Max, MaxGrad, Mean, MeanGrad, SwapLast};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
