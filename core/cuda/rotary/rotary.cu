// The device's rotary positions. core/cpu/rotary/rotary.h describes the kernel.
#include "lathe/core/cpu/rotary/rotary.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::RotaryArgs;
using cpu::RotaryKernels;

// Returns the row of the table for a row of x, or null if the position is outside the table.
__device__ const float* SinesOf(const RotaryArgs& args, int64_t row) {
  const int32_t position = args.positions[row % args.num_positions];
  if (position < 0 || position >= args.table_rows) return nullptr;
  return args.table + position * args.head_dim;
}

// The two elements of pair i, turned.
struct Turned {
  float a, b;
  __device__ Turned(float xa, float xb, const float* sines, int64_t i, const RotaryArgs& args) {
    if (sines == nullptr) {
      a = b = nanf("");
      return;
    }
    const float sin = args.back ? -sines[i] : sines[i], cos = sines[args.head_dim / 2 + i];
    a = xa * cos - xb * sin;
    b = xb * cos + xa * sin;
  }
};

// Each thread turns N pairs of one head at a time.
template <int N, typename T>
__global__ void TurnHalvesKernel(T* y, const T* x, RotaryArgs args) {
  const int64_t half = args.head_dim / 2, parts = half / N;
  for (int64_t i = GlobalThread(); i < args.rows * args.heads * parts; i += NumThreads()) {
    const int64_t head = i / parts, pair = i % parts * N;  // the head counts through all rows
    const float* const sines = SinesOf(args, head / args.heads);
    const int64_t at = head * args.head_dim + pair;
    auto a = LoadPack<N>(x + at), b = LoadPack<N>(x + at + half);
    for (int k = 0; k < N; ++k) {
      const Turned turned(Load(a.v[k]), Load(b.v[k]), sines, pair + k, args);
      Store(a.v[k], turned.a);
      Store(b.v[k], turned.b);
    }
    StorePack(y + at, a);
    StorePack(y + at + half, b);
  }
}

// Does the same for neighbours, with N columns at a time.
template <int N, typename T>
__global__ void TurnNeighboursKernel(T* y, const T* x, RotaryArgs args) {
  static_assert(N % 2 == 0);
  const int64_t parts = args.head_dim / N;
  for (int64_t i = GlobalThread(); i < args.rows * args.heads * parts; i += NumThreads()) {
    const int64_t head = i / parts, column = i % parts * N;
    const float* const sines = SinesOf(args, head / args.heads);
    const int64_t at = head * args.head_dim + column;
    auto values = LoadPack<N>(x + at);
    for (int k = 0; k < N; k += 2) {
      const Turned turned(Load(values.v[k]), Load(values.v[k + 1]), sines, (column + k) / 2, args);
      Store(values.v[k], turned.a);
      Store(values.v[k + 1], turned.b);
    }
    StorePack(y + at, values);
  }
}

// Does the same for neighbours at addresses that allow no packs.
template <typename T>
__global__ void TurnEachPairKernel(T* y, const T* x, RotaryArgs args) {
  const int64_t half = args.head_dim / 2;
  for (int64_t i = GlobalThread(); i < args.rows * args.heads * half; i += NumThreads()) {
    const int64_t head = i / half, pair = i % half, at = head * args.head_dim + 2 * pair;
    const float* const sines = SinesOf(args, head / args.heads);
    const Turned turned(Load(x[at]), Load(x[at + 1]), sines, pair, args);
    Store(y[at], turned.a);
    Store(y[at + 1], turned.b);
  }
}

template <typename T>
void Turn(T* y, const T* x, const RotaryArgs& args) {
  constexpr int N = kPack<T>;
  const int64_t pairs = args.rows * args.heads * args.head_dim / 2;
  if (pairs == 0) return;
  const bool aligned = Aligned16({y, x});
  if (args.neighbours && aligned && args.head_dim % N == 0) {
    LATHE_LAUNCH((TurnNeighboursKernel<N, T>), GridFor(2 * pairs / N), kBlock, 0, y, x, args);
  } else if (args.neighbours) {
    LATHE_LAUNCH(TurnEachPairKernel<T>, GridFor(pairs), kBlock, 0, y, x, args);
  } else if (aligned && args.head_dim / 2 % N == 0) {
    LATHE_LAUNCH((TurnHalvesKernel<N, T>), GridFor(pairs / N), kBlock, 0, y, x, args);
  } else {
    LATHE_LAUNCH((TurnHalvesKernel<1, T>), GridFor(pairs), kBlock, 0, y, x, args);
  }
}

template <typename T>
constexpr RotaryKernels::ForType<T> TableFor() {
  return {Turn<T>};
}

const RotaryKernels table = {
    .f32 = TableFor<float>(), .f64 = {}, .bf16 = TableFor<BFloat16>(), .f16 = TableFor<Float16>()};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
