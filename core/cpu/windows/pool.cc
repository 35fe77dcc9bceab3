#include "lathe/core/cpu/windows/pool.h"

#include <limits>
#include <type_traits>

namespace lathe::cpu {
namespace {

// Returns true if a tap replaces the largest element so far.
template <typename M>
[[gnu::always_inline]] inline bool Replaces(M value, M largest) {
  return value > largest || value != value;
}

// Computes the windows [begin, end) element by element.
template <typename T>
void MaxOfEdges(T* y, int32_t* places, const T* x, const PoolLine& line, int64_t begin,
                int64_t end) {
  for (int64_t o = begin; o < end; ++o) {
    MathType<T> largest = -std::numeric_limits<MathType<T>>::infinity();
    int64_t place = -1;
    for (int64_t t = 0; t < line.taps; ++t) {
      const int64_t at = o * line.stride - line.padding + t * line.dilation;
      if (at < 0 || at >= line.length) continue;
      const MathType<T> value = Load(x[at]);
      if (place >= 0 && !Replaces(value, largest)) continue;
      largest = value;
      place = at;
    }
    Store(y[o], largest);
    places[o] = static_cast<int32_t>(place);
  }
}

// Computes `n` windows that lie within the line. The first element of the first one is x[first].
// `fixed_taps` and `fixed_stride` are the line's, or 0 if these are rare. The compiler unrolls the
// loop over taps and vectorises the other one if it knows the taps.
template <int64_t fixed_taps, int64_t fixed_stride, typename T>
void MaxWithin(T* y, int32_t* places, const T* x, const PoolLine& line, int64_t first, int64_t n) {
  using M = MathType<T>;
  const int64_t taps = fixed_taps == 0 ? line.taps : fixed_taps;
  const int64_t stride = fixed_stride == 0 ? line.stride : fixed_stride, dilation = line.dilation;
  const T* const from = x + first;
#pragma omp simd
  for (int64_t o = 0; o < n; ++o) {
    M largest = Load(from[o * stride]);
    int32_t offset = 0;  // from the window's first element
#pragma GCC unroll 4
    for (int64_t t = 1; t < taps; ++t) {
      const M value = Load(from[o * stride + t * dilation]);
      const bool replaces = Replaces(value, largest);
      largest = replaces ? value : largest;
      offset = replaces ? static_cast<int32_t>(t * dilation) : offset;
    }
    Store(y[o], largest);
    places[o] = static_cast<int32_t>(first + o * stride) + offset;
  }
}

template <int64_t fixed_taps, typename T>
void MaxByStride(T* y, int32_t* places, const T* x, const PoolLine& line, int64_t first,
                 int64_t n) {
  if (line.stride == 1) return MaxWithin<fixed_taps, 1>(y, places, x, line, first, n);
  if (line.stride == 2) return MaxWithin<fixed_taps, 2>(y, places, x, line, first, n);
  MaxWithin<fixed_taps, 0>(y, places, x, line, first, n);
}

template <typename T>
void Max(T* y, int32_t* places, const T* x, const PoolLine& line) {
  // Windows before `begin` and from `end` on reach over an edge.
  const int64_t reach = (line.taps - 1) * line.dilation - line.padding;  // of window 0
  int64_t begin = (line.padding + line.stride - 1) / line.stride;
  int64_t end = line.length <= reach ? 0 : (line.length - 1 - reach) / line.stride + 1;
  if (end > line.windows) end = line.windows;
  if (begin >= end) begin = end = line.windows;
  MaxOfEdges(y, places, x, line, 0, begin);
  const int64_t first = begin * line.stride - line.padding, n = end - begin;
  const auto within = line.taps == 2   ? MaxByStride<2, T>
                      : line.taps == 3 ? MaxByStride<3, T>
                      : line.taps == 4 ? MaxByStride<4, T>
                                       : MaxByStride<0, T>;
  within(y + begin, places + begin, x, line, first, n);
  MaxOfEdges(y, places, x, line, end, line.windows);
}

}  // namespace

template <>
const PoolKernels& TableOf<PoolKernels, LATHE_ISA>() {
  static constexpr PoolKernels table = {{Max<float>}, {Max<double>}, {Max<BFloat16>}};
  return table;
}

}  // namespace lathe::cpu
