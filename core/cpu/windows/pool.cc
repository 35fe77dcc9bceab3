#include "lathe/core/cpu/windows/pool.h"

#include <limits>
#include <type_traits>

namespace lathe::cpu {
namespace {

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
      if (place >= 0 && !(value > largest) && value == value) continue;
      largest = value;
      place = at;
    }
    Store(y[o], largest);
    places[o] = static_cast<int32_t>(place);
  }
}

// Windows that are computed together.
constexpr int64_t kTogether = 16;

// Computes kTogether windows that lie within the line. The first element of the first one is
// x[first]. The taps are neighbours, and their number and the stride are known, so that the
// compiler makes registers of elements that lie together.
template <int64_t taps, int64_t stride, typename T>
void MaxOfSome(T* y, int32_t* places, const T* x, const PoolLine&, int64_t first) {
  using M = MathType<T>;
  const T* const from = x + first;
#pragma omp simd
  for (int64_t o = 0; o < kTogether; ++o) {
    M largest = Load(from[o * stride]);
    int32_t offset = 0;  // from the window's first element
#pragma GCC unroll 4
    for (int64_t t = 1; t < taps; ++t) {
      const M value = Load(from[o * stride + t]);
      const bool replaces = (value > largest) | (value != value);
      largest = replaces ? value : largest;
      offset = replaces ? static_cast<int32_t>(t) : offset;
    }
    Store(y[o], largest);
    places[o] = static_cast<int32_t>(first + o * stride) + offset;
  }
}

// Does the same for all other windows, tap by tap.
template <typename T>
void MaxByTaps(T* y, int32_t* places, const T* x, const PoolLine& line, int64_t first) {
  MathType<T> largest[kTogether];
  for (int64_t o = 0; o < kTogether; ++o) {
    largest[o] = Load(x[first + o * line.stride]);
    places[o] = static_cast<int32_t>(first + o * line.stride);
  }
  for (int64_t t = 1; t < line.taps; ++t) {
    const int64_t at = first + t * line.dilation;
#pragma omp simd
    for (int64_t o = 0; o < kTogether; ++o) {
      const MathType<T> value = Load(x[at + o * line.stride]), old = largest[o];
      const bool replaces = (value > old) | (value != value);
      largest[o] = replaces ? value : old;
      places[o] = replaces ? static_cast<int32_t>(at + o * line.stride) : places[o];
    }
  }
  for (int64_t o = 0; o < kTogether; ++o) Store(y[o], largest[o]);
}

template <typename T>
auto SomeOf(const PoolLine& line) {
  if (line.dilation == 1 && line.stride == 1) {
    if (line.taps == 2) return MaxOfSome<2, 1, T>;
    if (line.taps == 3) return MaxOfSome<3, 1, T>;
    if (line.taps == 4) return MaxOfSome<4, 1, T>;
  } else if (line.dilation == 1 && line.stride == line.taps) {
    if (line.taps == 2) return MaxOfSome<2, 2, T>;
    if (line.taps == 3) return MaxOfSome<3, 3, T>;
    if (line.taps == 4) return MaxOfSome<4, 4, T>;
  }
  return MaxByTaps<T>;
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
  if (end - begin < kTogether) return MaxOfEdges(y, places, x, line, begin, line.windows);
  const auto some = SomeOf<T>(line);
  for (int64_t o = begin; o < end; o += kTogether) {
    if (o > end - kTogether) o = end - kTogether;  // computes some windows again
    some(y + o, places + o, x, line, o * line.stride - line.padding);
  }
  MaxOfEdges(y, places, x, line, end, line.windows);
}

}  // namespace

template <>
const PoolKernels& TableOf<PoolKernels, LATHE_ISA>() {
  static constexpr PoolKernels table = {{Max<float>}, {Max<double>}, {Max<BFloat16>}};
  return table;
}

}  // namespace lathe::cpu
