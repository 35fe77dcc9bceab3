#include "lathe/core/cpu/optimizer.h"

#include <cmath>
#include <cstdlib>

namespace lathe::cpu {
namespace {

constexpr int64_t kChunk = 16384;
constexpr int64_t kLine = 16;  // elements of a cache line

// Asks for what lies 1 KB ahead: the processor's own prefetching reads a fifth slower.
[[gnu::always_inline]] inline void Fetch(const float* x) { __builtin_prefetch(x + 256); }

template <bool has_narrow>
[[gnu::always_inline]] inline void UpdateBlock(float* p, float* m, float* v, BFloat16* narrow,
                                               const float* g, int64_t n, const AdamWStep& s) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float grad = g[i] * s.grad_scale;
    const float mean = m[i] + s.rest1 * (grad - m[i]);
    const float square = s.beta2 * v[i] + s.rest2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    const float value =
        p[i] * s.decay - s.step_size * mean / (std::sqrt(square) * s.inverse_bias2 + s.eps);
    p[i] = value;
    if constexpr (has_narrow) Store(narrow[i], value);
  }
}

// False for NaN among them.
[[gnu::always_inline]] inline bool AllZero(const float* g, int64_t n) {
  uint32_t bits = 0;
#pragma omp simd reduction(| : bits)
  for (int64_t i = 0; i < n; ++i) bits |= std::bit_cast<uint32_t>(g[i]) << 1;  // -0 is zero
  return bits == 0;
}

void AdamW(float* p, float* m, float* v, BFloat16* narrow, uint8_t* active, bool marked,
           const float* g, int64_t n, const AdamWStep& step) {
  const AdamWStep s = step;
  const int64_t blocks = (n + kAdamWBlock - 1) / kAdamWBlock;
#pragma omp parallel for schedule(static) if (n > kChunk)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t i = block * kAdamWBlock;
    const int64_t count = n - i < kAdamWBlock ? n - i : kAdamWBlock;
    if (active[block] != 1) {
      if (active[block] == 0 && (marked || AllZero(g + i, count))) continue;
      active[block] = 1;
      m[i] = v[i] = 0;  // fresh pages that are read first are mapped twice
    }
    for (int64_t j = 0; j < count; j += kLine) {
      Fetch(p + i + j);
      Fetch(m + i + j);
      Fetch(v + i + j);
      Fetch(g + i + j);
    }
    if (narrow == nullptr) {
      UpdateBlock<false>(p + i, m + i, v + i, nullptr, g + i, count, s);
    } else {
      UpdateBlock<true>(p + i, m + i, v + i, narrow + i, g + i, count, s);
    }
  }
}

typedef double Doubles __attribute__((vector_size(64)));
[[gnu::always_inline]] inline Doubles DoublesAt(const float* x) {
  Doubles wide;
#pragma GCC unroll 8
  for (int64_t i = 0; i < kLine / 2; ++i) wide[i] = x[i];
  return wide;
}

double SumOfSquares(const Stretch* stretches, int64_t count) {
  double* partial = static_cast<double*>(std::malloc(static_cast<size_t>(count + 1) * 8));
#pragma omp parallel for schedule(static)
  for (int64_t s = 0; s < count; ++s) {
    const float* x = stretches[s].data;
    const int64_t n = stretches[s].n, whole = n / kLine * kLine;
    Doubles lower = {}, upper = {};
    for (int64_t i = 0; i < whole; i += kLine) {
      Fetch(x + i);
      const Doubles a = DoublesAt(x + i), b = DoublesAt(x + i + kLine / 2);
      lower += a * a;
      upper += b * b;
    }
    lower += upper;
    double sum = 0;
    for (int64_t i = 0; i < kLine / 2; ++i) sum += lower[i];
    for (int64_t i = whole; i < n; ++i) sum += double{x[i]} * double{x[i]};
    partial[s] = sum;
  }
  double sum = 0;
  for (int64_t s = 0; s < count; ++s) sum += partial[s];
  std::free(partial);
  return sum;
}

}  // namespace

template <>
const OptimizerKernels& TableOf<OptimizerKernels, LATHE_ISA>() {
  static constexpr OptimizerKernels table = {AdamW, SumOfSquares};
  return table;
}

}  // namespace lathe::cpu
