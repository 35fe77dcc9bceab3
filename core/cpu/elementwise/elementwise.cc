#include "lathe/core/cpu/elementwise/elementwise.h"

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

template <typename F, typename T>
void Map(const F& f, T* y, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float> && requires { InLanes(f, Lanes<float>{}); }) {
    StoreEachLanes(
        y, n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
          return InLanes(F{}, LoadLanes(x + i, which));
        });
  } else {
    const F own = f;  // which no element of y can overlap
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = own(x[i]);
  }
}

// Frequent powers are constants, so that the compiler sees products.
template <typename T>
void MapPower(const functions::PowScalar& f, T* y, const T* x, int64_t n) {
  if (f.exponent == 2) return Map(functions::PowScalar{2}, y, x, n);
  if (f.exponent == 3) return Map(functions::PowScalar{3}, y, x, n);
  Map(f, y, x, n);
}

// Calls body(stride) with a stride of 0 or 1 as an integral constant.
template <typename Body>
void WithConstant(int64_t stride, Body body) {
  if (stride == 0) return body(std::integral_constant<int64_t, 0>{});
  body(std::integral_constant<int64_t, 1>{});
}

template <typename F, typename T>
void Zip(const F& f, T* y, ZipOperand<T> a, ZipOperand<T> b, int64_t rows, int64_t n) {
  const F own = f;
  WithConstant(a.stride, [=](auto a_stride) {
    WithConstant(b.stride, [=](auto b_stride) {
      for (int64_t r = 0; r < rows; ++r) {
        const T* const left = a.data + r * a.row_stride;
        const T* const right = b.data + r * b.row_stride;
        T* const out = y + r * n;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = own(left[i * a_stride], right[i * b_stride]);
      }
    });
  });
}

template <typename T>
void ZipPower(const functions::PowScalarGrad& f, T* y, ZipOperand<T> a, ZipOperand<T> b,
              int64_t rows, int64_t n) {
  if (f.exponent == 2) return Zip(functions::PowScalarGrad{2}, y, a, b, rows, n);
  if (f.exponent == 3) return Zip(functions::PowScalarGrad{3}, y, a, b, rows, n);
  Zip(f, y, a, b, rows, n);
}

template <typename F>
constexpr MapKernel<F> MapTable() {
  return {Map<F, float>, Map<F, double>};
}
template <>
constexpr MapKernel<functions::PowScalar> MapTable() {
  return {MapPower<float>, MapPower<double>};
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
