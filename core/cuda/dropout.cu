// The device's dropout. core/cpu/dropout.h declares and describes it.
#include "lathe/core/cpu/dropout.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::DropoutKernels;
using cpu::DropoutMask;

// A thread takes V consecutive blocks of random bits, and thus V elements in each quarter of a row.
// If V is 1, the last quarter may be shorter than the others.
template <typename T, int V>
__global__ void Kernel(const T* x, T* out, int64_t rows, int64_t n, DropoutMask given) {
  const DropoutMask mask = WithCurrentStep(given);
  const int64_t quarter = (n + 3) / 4, groups = quarter / V;
  const float scale = static_cast<float>(mask.scale);
  for (int64_t i = GlobalThread(); i < rows * groups; i += NumThreads()) {
    const int64_t row = i / groups, b = i % groups * V, at = row * n + b;
    Pack<T, V> packs[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (q * quarter + b < n) packs[q] = LoadPack<V>(x + at + q * quarter);
    }
    const int32_t sample = mask.row_samples[row], position = mask.row_positions[row];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const PhiloxBlock bits = DropoutBits(mask, sample, position, static_cast<uint32_t>(b + v));
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        T& value = packs[q].v[v];
        Store(value, bits.v[q] < mask.threshold ? 0 : Load(value) * scale);
      }
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (q * quarter + b < n) StorePack(out + at + q * quarter, packs[q]);
    }
  }
}

template <typename T>
void Dropout(const T* x, T* out, int64_t rows, int64_t n, const DropoutMask& mask) {
  if (rows == 0 || n == 0) return;
  constexpr int V = kPack<T>;
  if (n % (4 * V) == 0 && Aligned16({x, out})) {
    LATHE_LAUNCH((Kernel<T, V>), GridFor(rows * n / (4 * V)), kBlock, 0, x, out, rows, n, mask);
  } else {
    LATHE_LAUNCH((Kernel<T, 1>), GridFor(rows * ((n + 3) / 4)), kBlock, 0, x, out, rows, n, mask);
  }
}

const DropoutKernels table = {
    .f32 = Dropout<float>, .f64 = nullptr, .bf16 = Dropout<BFloat16>, .f16 = Dropout<Float16>};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
