#include "lathe/core/cpu/rows/rows.h"

#include <cmath>
#include <limits>

#include "lathe/core/cpu/full_range.h"
#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

// As many elements as a register has of double.
template <typename T>
[[gnu::always_inline]] inline Lanes<double> LoadAsDoubles(const T* x) {
  if constexpr (std::is_same_v<T, double>) {
    return LoadLanes(x, AllLanes{});
  } else {
    typedef float Floats __attribute__((vector_size(kRegisterBytes / 2)));
    Floats floats;
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(&floats, x, sizeof(floats));
    } else {
      for (int64_t i = 0; i < kLanesOf<double>; ++i) floats[i] = Load(x[i]);
    }
    return __builtin_convertvector(floats, Lanes<double>);
  }
}

// Element i is added to sum i % kSums, and these are then added up. So the order is the same at
// each level.
template <typename T>
double Sum(const T* x, int64_t n) {
  constexpr int64_t kSums = 32, kBlock = 1024, kLanes = kLanesOf<double>;
  constexpr int64_t kRegisters = kSums / kLanes < 8 ? kSums / kLanes : 8;  // at a time
  if (n <= kSums) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += Load(x[i]);
    return sum;
  }
  double sums[kSums] = {};
  const int64_t whole = n / kSums * kSums;
  for (int64_t begin = 0; begin < whole; begin += kBlock) {
    const int64_t end = begin + kBlock < whole ? begin + kBlock : whole;
    for (int64_t first = 0; first < kSums; first += kRegisters * kLanes) {
      Lanes<double> sum[kRegisters];
#pragma GCC unroll 8
      for (int64_t k = 0; k < kRegisters; ++k)
        sum[k] = LoadLanes(sums + first + k * kLanes, AllLanes{});
      for (int64_t i = begin + first; i < end; i += kSums) {
#pragma GCC unroll 8
        for (int64_t k = 0; k < kRegisters; ++k) sum[k] += LoadAsDoubles(x + i + k * kLanes);
      }
#pragma GCC unroll 8
      for (int64_t k = 0; k < kRegisters; ++k)
        StoreLanes(sums + first + k * kLanes, sum[k], AllLanes{});
    }
  }
  for (int64_t i = whole; i < n; ++i) sums[i - whole] += Load(x[i]);
  double a = 0, b = 0, c = 0, d = 0;
  for (int64_t i = 0; i < kSums; i += 4) {
    a += sums[i];
    b += sums[i + 1];
    c += sums[i + 2];
    d += sums[i + 3];
  }
  return (a + b) + (c + d);
}

// Adds the sums of as many columns as fill `registers` registers.
template <int registers, typename T>
[[gnu::always_inline]] inline void AddRegisters(MathType<T>* sums, const T* x, int64_t rows,
                                                int64_t ld) {
  using M = MathType<T>;
  Lanes<M> sum[registers];
#pragma GCC unroll 8
  for (int k = 0; k < registers; ++k) sum[k] = LoadLanes(sums + k * kLanesOf<M>, AllLanes{});
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int k = 0; k < registers; ++k)
      sum[k] += LoadLanes(x + r * ld + k * kLanesOf<M>, AllLanes{});
  }
#pragma GCC unroll 8
  for (int k = 0; k < registers; ++k) StoreLanes(sums + k * kLanesOf<M>, sum[k], AllLanes{});
}

template <typename T>
void AddWideColumns(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  constexpr int kRegisters = 8;
  constexpr int64_t kLanes = kLanesOf<MathType<T>>;
  int64_t c = 0;
  for (; c + kRegisters * kLanes <= n; c += kRegisters * kLanes)
    AddRegisters<kRegisters>(sums + c, x + c, rows, ld);
  for (; c + 4 * kLanes <= n; c += 4 * kLanes) AddRegisters<4>(sums + c, x + c, rows, ld);
  for (; c + kLanes <= n; c += kLanes) AddRegisters<1>(sums + c, x + c, rows, ld);
  for (; c < n; ++c) {
    MathType<T> sum = sums[c];
    for (int64_t r = 0; r < rows; ++r) sum += Load(x[r * ld + c]);
    sums[c] = sum;
  }
}

template <typename T>
void AddColumns(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld) {
  constexpr int64_t kNarrow = 64, kWide = 128;  // columns
  if (n == 0 || n >= kNarrow || ld != n || rows < 2 * (kWide / n))
    return AddWideColumns(sums, x, rows, n, ld);
  const int64_t together = kWide / n, wide_rows = rows / together;
  MathType<T> wide[kWide] = {};
  AddWideColumns(wide, x, wide_rows, together * n, together * n);
  for (int64_t i = 0; i < together * n; ++i) sums[i % n] += wide[i];
  AddWideColumns(sums, x + wide_rows * together * n, rows - wide_rows * together, n, n);
}

// The type of rows' numbers: one for each lane of a register, or one.
template <typename M>
struct RowsOf {
  typedef std::conditional_t<sizeof(M) == 4, int32_t, int64_t> type;
};
template <>
struct RowsOf<Lanes<float>> {
  typedef int32_t type __attribute__((vector_size(kRegisterBytes)));
};
template <>
struct RowsOf<Lanes<double>> {
  typedef int64_t type __attribute__((vector_size(kRegisterBytes)));
};

template <typename M>
[[gnu::always_inline]] inline auto LaneOf(const M& lanes, int64_t i) {
  if constexpr (std::is_arithmetic_v<M>) {
    return lanes;
  } else {
    return lanes[i];
  }
}

template <bool largest, typename T>
void Extremes(T* values, int64_t* indices, const T* x, int64_t rows, int64_t n, int64_t ld) {
  const auto replaces = [](auto value, auto best) __attribute__((always_inline)) {
    return (largest ? value > best : value < best) | ((value != value) & (best == best));
  };
  ForLanesAndRest<MathType<T>>(
      n, [&](int64_t c, auto which) __attribute__((always_inline)) {
        const int64_t count = std::is_same_v<decltype(which), OneLane> ? 1 : kLanesOf<MathType<T>>;
        auto best = LoadLanes(x + c, which);
        typename RowsOf<decltype(best)>::type places = {};
        if (indices == nullptr) {
          for (int64_t r = 1; r < rows; ++r) {
            const auto value = LoadLanes(x + r * ld + c, which);
            best = replaces(value, best) ? value : best;
          }
        } else {
          for (int64_t r = 1; r < rows; ++r) {
            const auto value = LoadLanes(x + r * ld + c, which);
            const auto further = replaces(value, best);
            best = further ? value : best;
            places =
                further ? decltype(places){} + static_cast<decltype(LaneOf(places, 0))>(r) : places;
          }
          for (int64_t i = 0; i < count; ++i) indices[c + i] = LaneOf(places, i);
        }
        for (int64_t i = 0; i < count; ++i) Store(values[c + i], LaneOf(best, i));
      });
}
template <typename T>
void EitherExtremes(T* values, int64_t* indices, const T* x, int64_t rows, int64_t n, int64_t ld,
                    bool largest) {
  (largest ? Extremes<true, T> : Extremes<false, T>)(values, indices, x, rows, n, ld);
}

// Returns the maximum. If the row has a NaN, returns some element: the callers' sums are NaN then.
template <typename T>
T MaxOfRow(const T* x, int64_t n) {
  T max = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

// y: (n) = e^(x - shift)
template <typename T>
[[gnu::always_inline]] inline void ExpOfRow(T* y, const T* x, T shift, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    StoreEachLanes(
        y, n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          return ExpOfAny(LoadLanes(x + i, which) - shift);
        });
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i] - shift);
  }
}

template <typename T>
void Softmax(T* y, const T* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    ExpOfRow(y, x, MaxOfRow(x, n), n);
    const T scale = static_cast<T>(1 / Sum(y, n));
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] *= scale;
  }
}

template <typename T>
void LogSoftmax(T* y, const T* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const T max = MaxOfRow(x, n);
    ExpOfRow(y, x, max, n);
    const T log_sum = static_cast<T>(std::log(Sum(y, n)));
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] - max - log_sum;
  }
}

template <typename T>
void SoftmaxGrad(T* dx, const T* dy, const T* y, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, dx += n, dy += n, y += n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * y[i];
    const T sum = static_cast<T>(Sum(dx, n));
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - sum);
  }
}

template <typename T>
void LogSoftmaxGrad(T* dx, const T* dy, const T* y, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, dx += n, dy += n, y += n) {
    const T sum = static_cast<T>(Sum(dy, n));
    ExpOfRow(dx, y, T(0), n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - dx[i] * sum;
  }
}

template <typename T>
constexpr RowKernels::ForType<T> TableFor() {
  return {Sum<T>, AddColumns<T>, EitherExtremes<T>};
}
template <typename T>
constexpr RowKernels::Softmax<T> SoftmaxTable() {
  return {Softmax<T>, LogSoftmax<T>, SoftmaxGrad<T>, LogSoftmaxGrad<T>};
}

}  // namespace

template <>
const RowKernels& TableOf<RowKernels, LATHE_ISA>() {
  static constexpr RowKernels table = {TableFor<float>(),     TableFor<double>(),
                                       TableFor<BFloat16>(),  {},
                                       SoftmaxTable<float>(), SoftmaxTable<double>()};
  return table;
}

}  // namespace lathe::cpu
