#include "lathe/core/ops/create/create.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/base/philox.h"
#include "lathe/core/cpu/normal.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {
namespace {

// Writes a number to an element of any type.
template <typename T>
void Write(T& to, double value) {
  if constexpr (std::is_arithmetic_v<T>) {
    to = static_cast<T>(value);
  } else {
    cpu::Store(to, static_cast<float>(value));
  }
}

// Fills a tensor with the numbers that `draw(values, block, blocks, key0, key1)` writes, four for
// each block of Philox.
template <typename Draw>
Tensor Random(const char* op, const Shape& shape, uint64_t seed, const RandomOptions& options,
              Draw draw) {
  constexpr int64_t kAtATime = 1024;  // elements
  Check(IsFloating(options.dtype), op, "expected a floating dtype but got ",
        ToString(options.dtype));
  const uint64_t key = seed ^ HashName(op);
  const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  const Tensor drawn = Tensor::Empty(shape, options.dtype);
  DispatchAll(options.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const out = static_cast<T*>(drawn.raw_data());
    const int64_t n = drawn.numel();
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t first = 0; first < n; first += kAtATime) {
      double values[kAtATime];
      const int64_t count = std::min(kAtATime, n - first);
      draw(values, first / 4, (count + 3) / 4, key0, key1);
      for (int64_t i = 0; i < count; ++i) Write(out[first + i], values[i]);
    }
  });
  return drawn.To(options.device);
}

}  // namespace

Tensor ArangeOf(double start, double end, double step, DType dtype, Device device) {
  Check(std::isfinite(start) && std::isfinite(end) && std::isfinite(step) && step != 0, "arange",
        "expected finite numbers and a step other than 0 but got ", start, ", ", end, ", ", step);
  const double count = std::max(0.0, std::ceil((end - start) / step));
  Check(count < 0x1p53, "arange", "there are more than 2^53 numbers from ", start, " to ", end);
  const auto n = static_cast<int64_t>(count);
  const Tensor y = Tensor::Empty({n}, dtype);
  DispatchAll(dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const out = static_cast<T*>(y.raw_data());
    for (int64_t i = 0; i < n; ++i) Write(out[i], start + static_cast<double>(i) * step);
  });
  return y.To(device);
}

Tensor Randn(const Shape& shape, uint64_t seed, const RandomOptions& options) {
  return Random("randn", shape, seed, options, cpu::Kernels<cpu::NormalKernels>().fill);
}

Tensor Rand(const Shape& shape, uint64_t seed, const RandomOptions& options) {
  return Random("rand", shape, seed, options,
                [](double* values, int64_t first, int64_t blocks, uint32_t key0, uint32_t key1) {
                  for (int64_t b = 0; b < blocks; ++b) {
                    const auto at = static_cast<uint64_t>(first + b);
                    const PhiloxBlock block = Philox4x32(
                        {{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)}}, key0, key1);
                    // Adding a half keeps 0 and 1 out.
                    for (int i = 0; i < 4; ++i) values[4 * b + i] = (block.v[i] + 0.5) * 0x1p-32;
                  }
                });
}

}  // namespace lathe
