#include "lathe/core/cpu/activation.h"

#include "lathe/core/cpu/activation_tables.h"

namespace lathe::cpu {
namespace {

// Calls body(begin, n) for consecutive parts of all `n` elements; threads share the parts. A few
// parts are not worth waking them.
template <typename Body>
void InParts(int64_t n, const Body& body) {
#pragma omp parallel for schedule(static) if (n > 4 * kActivationPart)
  for (int64_t begin = 0; begin < n; begin += kActivationPart) {
    body(begin, n - begin < kActivationPart ? n - begin : kActivationPart);
  }
}

template <typename T>
void Forward(T* y, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    using Act = decltype(act);
    if constexpr (kLooksUp<Act, T>) {
      const auto& table = ActivationValues<Act>::Get();
      InParts(n, [&](int64_t begin, int64_t part) { table.Values(y + begin, x + begin, part); });
    } else {
      InParts(n, [&](int64_t begin, int64_t part) { Values<Act>(y + begin, x + begin, part); });
    }
  });
}

template <typename T>
void Backward(T* dx, const T* dy, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    using Act = decltype(act);
    if constexpr (kLooksUp<Act, T>) {
      const auto& table = ActivationDerivatives<Act>::Get();
      InParts(n, [&](int64_t begin, int64_t part) {
        table.Gradients(dx + begin, dy + begin, x + begin, part);
      });
    } else {
      InParts(n, [&](int64_t begin, int64_t part) {
        Gradients<Act>(dx + begin, dy + begin, x + begin, part);
      });
    }
  });
}

template <typename T>
void BackwardAndValue(T* dx, T* y, const T* dy, const T* x, int64_t n, ActivationKind kind) {
  Functions::With(kind, [&](auto act) {
    using Act = decltype(act);
    if constexpr (kLooksUp<Act, T>) {
      const auto& table = ActivationDerivatives<Act>::Get();
      InParts(n, [&](int64_t begin, int64_t part) {
        table.GradientsAndValues(dx + begin, y + begin, dy + begin, x + begin, part);
      });
    } else {
      InParts(n, [&](int64_t begin, int64_t part) {
        GradientsAndValues<Act>(dx + begin, y + begin, dy + begin, x + begin, part);
      });
    }
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
  constexpr int64_t kFew = 16384;  // elements that one thread adds up faster than two
#pragma omp parallel for schedule(static) if (rows * n > kFew)
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
