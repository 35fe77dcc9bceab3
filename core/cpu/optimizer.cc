#include "lathe/core/cpu/optimizer.h"

#include <cmath>

#include "lathe/core/base/round_up.h"
#include "lathe/core/base/working_memory.h"
#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kChunk = 16384;
constexpr int64_t kLine = 16;  // elements of a cache line

// Prefetches what lies 1 KB ahead. Reading is a fifth slower with the processor's own prefetching.
[[gnu::always_inline]] inline void Fetch(const float* x) { __builtin_prefetch(x + 256); }

template <bool has_narrow>
[[gnu::always_inline]] inline void UpdateBlock(float* p, float* m, float* v, BFloat16* narrow,
                                               const float* g, int64_t n, const AdamWStep& s) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float grad = g[i] * s.grad_scale;
    const float mean = m[i] + s.one_minus_beta1 * (grad - m[i]);
    const float square = s.beta2 * v[i] + s.one_minus_beta2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    const float value =
        p[i] * s.decay - s.step_size * mean / (std::sqrt(square) * s.inverse_bias2 + s.eps);
    p[i] = value;
    if constexpr (has_narrow) Store(narrow[i], value);
  }
}

// Returns true if every element is 0 or -0; NaN is neither.
[[gnu::always_inline]] inline bool AllZero(const float* g, int64_t n) {
  uint32_t bits = 0;
#pragma omp simd reduction(| : bits)
  for (int64_t i = 0; i < n; ++i) bits |= std::bit_cast<uint32_t>(g[i]) << 1;  // drops the sign
  return bits == 0;
}

// Updates the elements from `begin` on: kChunk of them, or what is left. `begin` is a multiple of
// kAdamWBlock.
void UpdateChunk(const AdamWRange& range, int64_t begin) {
  const AdamWStep s = range.step;
  const int64_t end = range.n - begin < kChunk ? range.n : begin + kChunk;
  float *const p = range.p, *const m = range.m, *const v = range.v;
  const float* const g = range.g;
  for (int64_t i = begin; i < end; i += kAdamWBlock) {
    const int64_t count = end - i < kAdamWBlock ? end - i : kAdamWBlock;
    uint8_t& active = range.active[i / kAdamWBlock];
    if (active != 1) {
      if (active == 0 && (range.marked || AllZero(g + i, count))) continue;
      active = 1;
      m[i] = v[i] = 0;  // a fresh page is mapped twice if it is read before it is written
    }
    for (int64_t j = 0; j < count; j += kLine) {
      Fetch(p + i + j);
      Fetch(m + i + j);
      Fetch(v + i + j);
      Fetch(g + i + j);
    }
    if (range.narrow == nullptr) {
      UpdateBlock<false>(p + i, m + i, v + i, nullptr, g + i, count, s);
    } else {
      UpdateBlock<true>(p + i, m + i, v + i, range.narrow + i, g + i, count, s);
    }
  }
}

void AdamW(const AdamWRange* ranges, int64_t count) {
  // ends[i] is the end of range i's chunks in the list of all chunks.
  int64_t* const ends =
      static_cast<int64_t*>(WorkingMemory(static_cast<size_t>(count) * sizeof(int64_t)));
  int64_t chunks = 0;
  for (int64_t i = 0; i < count; ++i) ends[i] = chunks += DivideUp(ranges[i].n, kChunk);
#pragma omp parallel for schedule(dynamic, 2) if (chunks > 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    int64_t first = 0, last = count - 1;  // the chunk lies in one of the ranges first..last
    while (first < last) {
      const int64_t middle = (first + last) / 2;
      if (ends[middle] > chunk) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    UpdateChunk(ranges[first], (chunk - (first == 0 ? 0 : ends[first - 1])) * kChunk);
  }
}

[[gnu::always_inline]] inline Lanes<double> DoublesAt(const float* x) {
  Lanes<double> wide;
#pragma GCC unroll 8
  for (int64_t i = 0; i < kLanesOf<double>; ++i) wide[i] = x[i];
  return wide;
}

double SumOfSquares(const FloatRange* ranges, int64_t count) {
  double* partial =
      static_cast<double*>(WorkingMemory(static_cast<size_t>(count) * sizeof(double)));
#pragma omp parallel for schedule(dynamic, 4)  // ranges may differ in size
  for (int64_t r = 0; r < count; ++r) {
    const float* x = ranges[r].data;
    const int64_t n = ranges[r].n, whole = n / kLine * kLine;
    constexpr int64_t kStep = kLanesOf<double>;
    Lanes<double> sums[kLine / kStep] = {};
    for (int64_t i = 0; i < whole; i += kLine) {
      Fetch(x + i);
#pragma GCC unroll 8
      for (int64_t j = 0; j < kLine / kStep; ++j) {
        const Lanes<double> wide = DoublesAt(x + i + j * kStep);
        sums[j] += wide * wide;
      }
    }
    for (int64_t j = 1; j < kLine / kStep; ++j) sums[0] += sums[j];
    double sum = 0;
    for (int64_t i = 0; i < kStep; ++i) sum += sums[0][i];
    for (int64_t i = whole; i < n; ++i) sum += double{x[i]} * double{x[i]};
    partial[r] = sum;
  }
  double sum = 0;
  for (int64_t r = 0; r < count; ++r) sum += partial[r];
  return sum;
}

}  // namespace

template <>
const OptimizerKernels& TableOf<OptimizerKernels, LATHE_ISA>() {
  static constexpr OptimizerKernels table = {AdamW, SumOfSquares};
  return table;
}

}  // namespace lathe::cpu
