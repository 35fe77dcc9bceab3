#include "lathe/core/cpu/activation.h"

#include "lathe/core/cpu/activation_lanes.h"

namespace lathe::cpu {
namespace {

// Calls body(begin, n) for consecutive parts of all `n` elements; threads share the parts.
template <typename Body>
void InParts(int64_t n, const Body& body) {
  constexpr int64_t kPart = 1024;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < n; begin += kPart) {
    body(begin, n - begin < kPart ? n - begin : kPart);
  }
}

template <typename T>
void Forward(T* y, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    using Act = decltype(act);
    InParts(n, [&](int64_t begin, int64_t part) {
      if constexpr (kInLanes<Act, T>) {
        ForLanes<float>(
            part, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
              const Lanes<float> half = LoadLanes(x + begin + i, which) * 0.5f;
              const Lanes<float> erf = Erf(half * 1.41421356f);
              StoreLanes(y + begin + i, CutValue<Act>(half + half * erf), which);
            });
      } else {
#pragma omp simd
        for (int64_t i = begin; i < begin + part; ++i) Store(y[i], Act::Value(Load(x[i])));
      }
    });
  });
}

template <typename T>
void Backward(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    using Act = decltype(act);
    InParts(n, [&](int64_t begin, int64_t part) {
      if constexpr (kInLanes<Act, T>) {
        ForLanes<float>(
            part, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
              Lanes<float> derivative;
              const Lanes<float> at = LoadLanes(x + begin + i, which);
              GeluBoth(at, &derivative);
              derivative = CutDerivative<Act>(derivative, at);
              StoreLanes(dx + begin + i, LoadLanes(dy + begin + i, which) * derivative, which);
            });
      } else {
#pragma omp simd
        for (int64_t i = begin; i < begin + part; ++i)
          Store(dx[i], Load(dy[i]) * Act::Derivative(Load(x[i])));
      }
    });
  });
}

template <typename T>
void BackwardAndValue(T* dx, T* y, const T* dy, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    using Act = decltype(act);
    InParts(n, [&](int64_t begin, int64_t part) {
      if constexpr (kInLanes<Act, T>) {
        ForLanes<float>(
            part, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
              Lanes<float> derivative;
              const Lanes<float> at = LoadLanes(x + begin + i, which);
              const Lanes<float> value = CutValue<Act>(GeluBoth(at, &derivative));
              derivative = CutDerivative<Act>(derivative, at);
              const Lanes<float> gradient = LoadLanes(dy + begin + i, which) * derivative;
              StoreLanes(y + begin + i, value, which);
              StoreLanes(dx + begin + i, gradient, which);
            });
      } else {
#pragma omp simd
        for (int64_t i = begin; i < begin + part; ++i) {
          const MathType<T> at = Load(x[i]);
          Store(y[i], Act::Value(at));
          Store(dx[i], Load(dy[i]) * Act::Derivative(at));
        }
      }
    });
  });
}

// Adds the sums of as many columns of x as fill `registers` registers.
template <int registers, typename T>
void ColumnBlockSums(MathType<T>* sums, const T* x, int64_t rows, int64_t ld) {
  using M = MathType<T>;
  Lanes<M> sum[registers] = {};
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < registers; ++i)
      sum[i] += LoadLanes(x + r * ld + i * kLanesOf<M>, AllLanes{});
  }
  for (int i = 0; i < registers; ++i) {
    M* const to = sums + i * kLanesOf<M>;
    StoreLanes(to, LoadLanes(to, AllLanes{}) + sum[i], AllLanes{});
  }
}

template <typename T>
void ColumnSums(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  constexpr int64_t kRegisters = 8;
  constexpr int64_t kBlock = kRegisters * kLanesOf<MathType<T>>;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t width = n - begin < kBlock ? n - begin : kBlock;
    if (width == kBlock) {
      ColumnBlockSums<kRegisters>(sums + begin, x + begin, rows, ld);
      continue;
    }
    int64_t c = begin;
    for (; c + kLanesOf<MathType<T>> <= begin + width; c += kLanesOf<MathType<T>>)
      ColumnBlockSums<1>(sums + c, x + c, rows, ld);
    for (; c < begin + width; ++c) {
      MathType<T> sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += Load(x[r * ld + c]);
      sums[c] += sum;
    }
  }
}

template <typename T>
constexpr ActivationKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>, ColumnSums<T>, nullptr, BackwardAndValue<T>};
}

}  // namespace

template <>
const ActivationKernels& TableOf<ActivationKernels, LATHE_ISA>() {
  static constexpr ActivationKernels table = {TableFor<float>(), TableFor<double>(),
                                              TableFor<BFloat16>()};
  return table;
}

}  // namespace lathe::cpu
