#include "lathe/core/cpu/elementwise/elementwise.h"

#include <limits>
#include <numbers>
#include <utility>

#include "lathe/core/cpu/elementwise/powers.h"
#include "lathe/core/cpu/full_range.h"
#include "lathe/core/cpu/math.h"

namespace lathe::cpu {
namespace {

// The functions that the compiler does not vectorise, of whole registers.
[[gnu::always_inline]] inline Lanes<float> InLanes(functions::Exp, Lanes<float> x) {
  return ExpOfAny(x);
}
[[gnu::always_inline]] inline Lanes<float> InLanes(functions::Tanh, Lanes<float> x) {
  return TanhOfAny(x);
}
[[gnu::always_inline]] inline Lanes<float> InLanes(functions::Sigmoid, Lanes<float> x) {
  return 1.0f / (1.0f + ExpOfAny(-x));
}
[[gnu::always_inline]] inline Lanes<float> InLanes(functions::Erf, Lanes<float> x) {
  return Erf(x);
}

// Return functions of registers of double, for those whose results of float32 need it.
inline auto InDoubles(const functions::PowScalar& f) {
  return [exponent = Exponent(Lanes<double>{} + static_cast<float>(f.exponent))](Lanes<double> x)
      __attribute__((always_inline)) {
    return PowOfAny<false>(x, exponent);
  };
}
inline auto InDoubles(const functions::PowScalarGrad& f) {
  return [
    factor = double{static_cast<float>(f.exponent)},
    exponent = Exponent(Lanes<double>{} + static_cast<float>(f.exponent - 1))
  ](Lanes<double> dy, Lanes<double> x) __attribute__((always_inline)) {
    return dy * factor * PowOfAny<false>(x, exponent);
  };
}
inline auto InDoubles(functions::Pow) {
  return [](Lanes<double> u, Lanes<double> v) __attribute__((always_inline)) {
    return PowOfAny<true>(u, Exponent(v));
  };
}
inline auto InDoubles(functions::PowBaseDerivative) {
  return [](Lanes<double> u, Lanes<double> v) __attribute__((always_inline)) {
    return v == 0.0 ? Lanes<double>{} : v * PowOfAny<true>(u, Exponent(v - 1.0));
  };
}
inline auto InDoubles(functions::PowExponentDerivative) {
  return [](Lanes<double> u, Lanes<double> v) __attribute__((always_inline)) {
    const Lanes<double> zero = {};
    const Lanes<double> log = u < 0.0 ? zero + std::numeric_limits<double>::quiet_NaN()
                                      : Log2OfSize(u) * std::numbers::ln2;
    return ((u == 0.0) & (v >= 0.0)) ? zero : PowOfAny<true>(u, Exponent(v)) * log;
  };
}
inline auto InDoubles(functions::ErfGrad) {
  return [](Lanes<double> dy, Lanes<double> x) __attribute__((always_inline)) {
    return dy * (2 * std::numbers::inv_sqrtpi) * Exp2InFloatRange(-x * x * std::numbers::log2e);
  };
}

using Stride0 = std::integral_constant<int64_t, 0>;
using Stride1 = std::integral_constant<int64_t, 1>;

template <typename F, typename T>
[[gnu::always_inline]] inline void MapEach(const F& f, T* y, const T* x, int64_t n) {
  const F own = f;  // which no element of y can overlap
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = own(x[i]);
}

template <typename F, typename T>
void Map(const F& f, T* y, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float> && requires { InLanes(f, Lanes<float>{}); }) {
    StoreEachLanes(
        y, n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          return InLanes(F{}, LoadLanes(x + i, which));
        });
  } else if constexpr (std::is_same_v<T, float> && requires { InDoubles(f)(Lanes<double>{}); }) {
    ForDoubles(y, n, InDoubles(f), std::pair(x, Stride1{}));
  } else {
    MapEach(f, y, x, n);
  }
}

// Frequent powers are constants, so that the compiler sees products.
template <typename T>
void MapPower(const functions::PowScalar& f, T* y, const T* x, int64_t n) {
  if (static_cast<T>(f.exponent) == 0) return MapEach(functions::PowScalar{0}, y, x, n);
  if (f.exponent == 2) return MapEach(functions::PowScalar{2}, y, x, n);
  if (f.exponent == 3) return MapEach(functions::PowScalar{3}, y, x, n);
  Map(f, y, x, n);
}

// Calls body(stride) with a stride of 0 or 1 as an integral constant.
template <typename Body>
void WithConstant(int64_t stride, Body body) {
  if (stride == 0) return body(Stride0{});
  body(Stride1{});
}

// Calls body(out, left, right, left's stride, right's stride) for each row, with constant strides.
template <typename T, typename Body>
[[gnu::always_inline]] inline void ForZippedRows(T* y, const ZipOperand<T>& a,
                                                 const ZipOperand<T>& b, int64_t rows, int64_t n,
                                                 const Body& body) {
  WithConstant(a.stride, [&](auto a_stride) {
    WithConstant(b.stride, [&](auto b_stride) {
      for (int64_t r = 0; r < rows; ++r) {
        body(y + r * n, a.data + r * a.row_stride, b.data + r * b.row_stride, a_stride, b_stride);
      }
    });
  });
}

template <typename F, typename T>
[[gnu::always_inline]] inline void ZipEach(const F& f, T* y, ZipOperand<T> a, ZipOperand<T> b,
                                           int64_t rows, int64_t n) {
  ForZippedRows(y, a, b, rows, n,
                [own = f, n](T* out, const T* left, const T* right, auto a_stride, auto b_stride) {
#pragma omp simd
                  for (int64_t i = 0; i < n; ++i)
                    out[i] = own(left[i * a_stride], right[i * b_stride]);
                });
}

template <typename F, typename T>
void Zip(const F& f, T* y, ZipOperand<T> a, ZipOperand<T> b, int64_t rows, int64_t n) {
  if constexpr (std::is_same_v<T, float> &&
                requires { InDoubles(f)(Lanes<double>{}, Lanes<double>{}); }) {
    ForZippedRows(y, a, b, rows, n,
                  [function = InDoubles(f), n](T* out, const T* left, const T* right, auto a_stride,
                                               auto b_stride) {
                    ForDoubles(out, n, function, std::pair(left, a_stride),
                               std::pair(right, b_stride));
                  });
  } else {
    ZipEach(f, y, a, b, rows, n);
  }
}

template <typename T>
void ZipPower(const functions::PowScalarGrad& f, T* y, ZipOperand<T> a, ZipOperand<T> b,
              int64_t rows, int64_t n) {
  if (f.exponent == 0) return ZipEach(functions::PowScalarGrad{0}, y, a, b, rows, n);
  if (f.exponent == 1) return ZipEach(functions::PowScalarGrad{1}, y, a, b, rows, n);
  if (f.exponent == 2) return ZipEach(functions::PowScalarGrad{2}, y, a, b, rows, n);
  if (f.exponent == 3) return ZipEach(functions::PowScalarGrad{3}, y, a, b, rows, n);
  Zip(f, y, a, b, rows, n);
}

// One register at a time, because two don't fit beside the constants.
void MapLog(const functions::Log&, float* y, const float* x, int64_t n) {
  constexpr int64_t kStep = kLanesOf<float>;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    StoreLanes(y + i, LogOfAny(LoadLanes(x + i, AllLanes{})), AllLanes{});
  const FirstLanes rest{n - i};
  if (i < n) StoreLanes(y + i, LogOfAny(LoadLanes(x + i, rest)), rest);
}

template <typename F>
constexpr MapKernel<F> MapTable() {
  return {Map<F, float>, Map<F, double>};
}
template <>
constexpr MapKernel<functions::PowScalar> MapTable() {
  return {MapPower<float>, MapPower<double>};
}
template <>
constexpr MapKernel<functions::Log> MapTable() {
  return {MapLog, Map<functions::Log, double>};
}
template <typename F>
constexpr ZipKernel<F> ZipTable() {
  return {Zip<F, float>, Zip<F, double>};
}
template <>
constexpr ZipKernel<functions::PowScalarGrad> ZipTable() {
  return {ZipPower<float>, ZipPower<double>};
}

template <typename... F>
constexpr KernelsOfAll<MapKernel, functions::List<F...>> MapTables(functions::List<F...>) {
  return {MapTable<F>()...};
}
template <typename... F>
constexpr KernelsOfAll<ZipKernel, functions::List<F...>> ZipTables(functions::List<F...>) {
  return {ZipTable<F>()...};
}

}  // namespace

template <>
const ElementwiseKernels& TableOf<ElementwiseKernels, LATHE_ISA>() {
  static constexpr ElementwiseKernels table = {MapTables(functions::UnaryFunctions{}),
                                               ZipTables(functions::BinaryFunctions{})};
  return table;
}

}  // namespace lathe::cpu
