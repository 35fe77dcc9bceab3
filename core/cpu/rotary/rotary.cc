#include "lathe/core/cpu/rotary/rotary.h"

#include <type_traits>

#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

// Turns columns a and b of each of a row's heads.
template <typename T>
void TurnPair(T* y, const T* x, int64_t a, int64_t b, MathType<T> sin, MathType<T> cos,
              const RotaryArgs& args) {
  const int64_t d = args.head_dim;
  for (int64_t at = 0; at < args.heads * d; at += d) {
    const MathType<T> xa = Load(x[at + a]), xb = Load(x[at + b]);
    Store(y[at + a], xa * cos - xb * sin);
    Store(y[at + b], xb * cos + xa * sin);
  }
}

// Turns the pairs from number `first` on of a row, one by one.
template <typename T>
void TurnPairs(T* y, const T* x, const float* sines, int64_t first, const RotaryArgs& args) {
  const int64_t half = args.head_dim / 2;
  for (int64_t i = first; i < half; ++i) {
    const MathType<T> sin = args.back ? -sines[i] : sines[i];
    TurnPair(y, x, args.neighbours ? 2 * i : i, args.neighbours ? 2 * i + 1 : i + half, sin,
             MathType<T>(sines[half + i]), args);
  }
}

// Turn the pairs of a row that fill whole registers. Return the number of those pairs. A register
// of sines and cosines serves all heads.
template <typename T>
int64_t TurnHalves(T* y, const T* x, const float* sines, const RotaryArgs& args) {
  constexpr int64_t kStep = kLanesOf<float>;
  constexpr AllLanes kAll;
  const int64_t d = args.head_dim, half = d / 2;
  const float* const cosines = sines + half;
  const float sign = args.back ? -1.0f : 1.0f;
  int64_t c = 0;
  for (; c + 2 * kStep <= half; c += 2 * kStep) {
    const Lanes<float> sin0 = LoadLanes(sines + c, kAll) * sign,
                       sin1 = LoadLanes(sines + c + kStep, kAll) * sign,
                       cos0 = LoadLanes(cosines + c, kAll),
                       cos1 = LoadLanes(cosines + c + kStep, kAll);
    for (int64_t at = c; at < args.heads * d; at += d) {
      const Lanes<float> a0 = LoadLanes(x + at, kAll), b0 = LoadLanes(x + at + half, kAll),
                         a1 = LoadLanes(x + at + kStep, kAll),
                         b1 = LoadLanes(x + at + half + kStep, kAll);
      StoreTwoLanes(y + at, a0 * cos0 - b0 * sin0, a1 * cos1 - b1 * sin1);
      StoreTwoLanes(y + at + half, b0 * cos0 + a0 * sin0, b1 * cos1 + a1 * sin1);
    }
  }
  for (; c + kStep <= half; c += kStep) {
    const Lanes<float> sin = LoadLanes(sines + c, kAll) * sign, cos = LoadLanes(cosines + c, kAll);
    for (int64_t at = c; at < args.heads * d; at += d) {
      const Lanes<float> a = LoadLanes(x + at, kAll), b = LoadLanes(x + at + half, kAll);
      StoreLanes(y + at, a * cos - b * sin, kAll);
      StoreLanes(y + at + half, b * cos + a * sin, kAll);
    }
  }
  return c;
}

template <typename T>
int64_t TurnNeighbours(T* y, const T* x, const float* sines, const RotaryArgs& args) {
  constexpr int64_t kStep = kLanesOf<float>;
  constexpr AllLanes kAll;
  const int64_t d = args.head_dim;
  const float* const cosines = sines + d / 2;
  typedef int32_t Indices __attribute__((vector_size(kRegisterBytes)));
  Indices other, lower, upper;  // the other lane of a pair; the lane of its number in either half
  Lanes<float> signs;
  for (int64_t l = 0; l < kStep; ++l) {
    other[l] = static_cast<int32_t>(l ^ 1);
    lower[l] = static_cast<int32_t>(l / 2);
    upper[l] = static_cast<int32_t>((kStep + l) / 2);
    signs[l] = (l % 2 == 0) != args.back ? -1.0f : 1.0f;
  }
  int64_t c = 0;
  for (; c + kStep <= d; c += kStep) {
    // Half of each register is needed. The other half lies in the table's row, too.
    Lanes<float> sin = LoadLanes(sines + c / 2, kAll);
    Lanes<float> cos = LoadLanes(cosines + c / 2 - kStep / 2, kAll);
    sin = Shuffled(sin, sin, lower) * signs;
    cos = Shuffled(cos, cos, upper);
    for (int64_t at = c; at < args.heads * d; at += d) {
      const Lanes<float> v = LoadLanes(x + at, kAll);
      StoreLanes(y + at, v * cos + Shuffled(v, v, other) * sin, kAll);
    }
  }
  return c / 2;
}

template <typename T>
void Turn(T* y, const T* x, const RotaryArgs& args) {
  const int64_t width = args.heads * args.head_dim;
#pragma omp parallel for schedule(static) if (args.rows * width > 16384)
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* const sines = args.table + args.positions[r % args.num_positions] * args.head_dim;
    T* const to = y + r * width;
    const T* const from = x + r * width;
    int64_t done = 0;
    if constexpr (!std::is_same_v<T, double>) {
      done = args.neighbours ? TurnNeighbours(to, from, sines, args)
                             : TurnHalves(to, from, sines, args);
    }
    TurnPairs(to, from, sines, done, args);
  }
}

}  // namespace

template <>
const RotaryKernels& TableOf<RotaryKernels, LATHE_ISA>() {
  static constexpr RotaryKernels table = {{Turn<float>}, {Turn<double>}, {Turn<BFloat16>}};
  return table;
}

}  // namespace lathe::cpu
