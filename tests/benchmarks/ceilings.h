// The rates that a benchmark of a kernel is compared with: those of a large copy and of a large
// product.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lathe/core/gemm.h"
#include "lathe/core/tensor.h"

namespace lathe {

// The number of rows in the CPU's benchmarks: the tokens of 32 sentences of SST-2, rounded up to
// 13 * 64.
inline constexpr int64_t kRows = 832;

// Returns values that look random, even in [-1, 1). Kernels that branch or look results up are as
// fast as on real values only then.
template <typename T>
Tensor Filled(Shape shape) {
  const Tensor tensor = Tensor::Empty(std::move(shape), DTypeOf<T>::value);
  T* const values = tensor.data<T>();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    uint32_t bits = static_cast<uint32_t>(i) * 2654435761u;
    bits = (bits ^ bits >> 16) * 2246822519u;
    values[i] = static_cast<T>(static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f);
  }
  return tensor;
}
// For variances and the like.
inline Tensor FilledPositive(Shape shape) { return Tensor::Full(std::move(shape), 0.5); }

// Returns the least time of several runs.
template <typename F>
double Seconds(const F& f) {
  double least = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count());
  }
  return least;
}

// Copies a multiple of 4096 elements.
inline void CopyAll(const Tensor& to, const Tensor& from) {
  float* const t = to.data<float>();
  const float* const f = from.data<float>();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < to.numel(); i += 4096) std::memcpy(t + i, f + i, 4096 * sizeof(float));
  benchmark::ClobberMemory();
}

inline double BytesPerSecond() {
  static const double rate = [] {
    const Tensor a = Filled<float>({64 << 20}), b = Filled<float>({64 << 20});
    return 2.0 * static_cast<double>(a.bytes()) / Seconds([&] { CopyAll(b, a); });
  }();
  return rate;
}

template <typename T>
double OperationsPerSecond() {
  static const double rate = [] {
    constexpr int64_t n = 2048;
    const Tensor a = Filled<T>({n, n}), b = Filled<T>({n, n}), c = Filled<T>({n, n});
    return 2.0 * n * n * n / Seconds([&] {
             Gemm({}, n, n, n, a.data<T>(), n, b.data<T>(), n, 0.0f, c.data<T>(), n);
           });
  }();
  return rate;
}

inline void Rate(benchmark::State& state, const char* unit, double amount, double best) {
  using benchmark::Counter;
  state.counters[unit] = Counter(amount, Counter::kIsIterationInvariantRate, Counter::kIs1000);
  state.counters["fraction"] = Counter(amount / best, Counter::kIsIterationInvariantRate);
}
inline void Bytes(benchmark::State& state, double amount) {
  Rate(state, "B/s", amount, BytesPerSecond());
}
template <typename T>
void Operations(benchmark::State& state, double amount) {
  Rate(state, "FLOP/s", amount, OperationsPerSecond<T>());
}

}  // namespace lathe
