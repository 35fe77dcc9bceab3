// Registers of numbers, for two kinds of loops that compilers don't make fast on their own. One is
// sums, where each addition would wait for the one before. The other is bfloat16: where the
// processor has no instruction that rounds, rounding two registers takes 16 operations with AVX2.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/level.h"

namespace lathe::cpu {
namespace {

template <typename M>
requires std::is_floating_point_v<M>
struct LanesOf {
  typedef M type __attribute__((vector_size(kRegisterBytes)));
};
template <typename M>
using Lanes = typename LanesOf<M>::type;  // of float or double
template <typename M>
constexpr int64_t kLanesOf = kRegisterBytes / static_cast<int64_t>(sizeof(M));

// Tells which lanes of a register count: all, or the first n at a row's end.
struct AllLanes {};
struct FirstLanes {
  int64_t n;
};

template <typename M>
requires std::is_floating_point_v<M>
[[gnu::always_inline]] inline Lanes<M> LoadLanes(const M* x, AllLanes) {
  Lanes<M> lanes;
  std::memcpy(&lanes, x, sizeof(lanes));
  return lanes;
}
[[gnu::always_inline]] inline Lanes<float> LoadLanes(const BFloat16* x, AllLanes) {
#if LATHE_ISA >= 4
  // Some intrinsics without a mask make GCC warn about unused values.
  const __m256i halves = _mm256_loadu_si256((const __m256i_u*)x);
  return (Lanes<float>)_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, halves),
                                               16);
#elif LATHE_ISA >= 3
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u*)x));
  return (Lanes<float>)_mm256_slli_epi32(wide, 16);
#else
  const __m128i wide = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i_u*)x));
  return (Lanes<float>)_mm_slli_epi32(wide, 16);
#endif
}
// The other lanes are 0.
template <typename T>
[[gnu::always_inline]] inline Lanes<MathType<T>> LoadLanes(const T* x, FirstLanes first) {
  Lanes<MathType<T>> lanes = {};
  for (int64_t i = 0; i < first.n; ++i) lanes[i] = Load(x[i]);
  return lanes;
}

template <typename M>
requires std::is_floating_point_v<M>
[[gnu::always_inline]] inline void StoreLanes(M* to, Lanes<M> x, AllLanes) {
  std::memcpy(to, &x, sizeof(x));
}
// Rounds as Store does, but at level 5 magnitudes below 2^-126 become 0.
[[gnu::always_inline]] inline void StoreLanes(BFloat16* to, Lanes<float> x, AllLanes) {
#if LATHE_ISA >= 5
  static_assert(kRoundsInOneInstruction);
  _mm256_storeu_si256((__m256i_u*)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  typedef uint32_t Words __attribute__((vector_size(kRegisterBytes)));
  const Words u = (Words)x;
  const Words rounded = x == x ? u + 0x7fff + (u >> 16 & 1) : u | 0x400000;
#if LATHE_ISA == 4
  typedef uint16_t Halves __attribute__((vector_size(kRegisterBytes / 2)));
  const Halves upper = __builtin_convertvector(rounded >> 16, Halves);
  std::memcpy(static_cast<void*>(to), &upper, sizeof(upper));
#elif LATHE_ISA == 3
  // The compiler needs more instructions to narrow values that it doesn't know to be below 2^16.
  const __m256i halves = _mm256_packus_epi32((__m256i)(rounded >> 16), __m256i{});
  _mm_storeu_si128((__m128i_u*)to,
                   _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0b1000)));
#else
  _mm_storel_epi64((__m128i_u*)to, _mm_packus_epi32((__m128i)(rounded >> 16), __m128i{}));
#endif
#endif
}
template <typename T>
[[gnu::always_inline]] inline void StoreLanes(T* to, Lanes<MathType<T>> x, FirstLanes first) {
  for (int64_t i = 0; i < first.n; ++i) Store(to[i], x[i]);
}

// Stores two registers, one after the other.
template <typename T>
[[gnu::always_inline]] inline void StoreTwoLanes(T* to, Lanes<MathType<T>> first,
                                                 Lanes<MathType<T>> second) {
  StoreLanes(to, first, AllLanes{});
  StoreLanes(to + kLanesOf<MathType<T>>, second, AllLanes{});
}
#if LATHE_ISA <= 3
static_assert(kNarrowedTogether == 2);
// Is not inlined, because loops are better without rare code.
[[gnu::cold, gnu::noinline]] inline void StoreLanesWithNan(BFloat16* to, Lanes<float> first,
                                                           Lanes<float> second) {
  StoreLanes(to, first, AllLanes{});
  StoreLanes(to + kLanesOf<float>, second, AllLanes{});
}
// Rounds as StoreLanes does. Both registers are narrowed together, and one comparison finds NaN in
// either, which must not be rounded like a number.
[[gnu::always_inline]] inline void StoreTwoLanes(BFloat16* to, Lanes<float> first,
                                                 Lanes<float> second) {
  typedef uint32_t Words __attribute__((vector_size(kRegisterBytes)));
  const auto upper = [](Lanes<float> x) __attribute__((always_inline)) {
    const Words u = (Words)x;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
  };
#if LATHE_ISA == 3
  const int nan = _mm256_movemask_ps(_mm256_cmp_ps((__m256)first, (__m256)second, _CMP_UNORD_Q));
#else
  const int nan = _mm_movemask_ps(_mm_cmpunord_ps((__m128)first, (__m128)second));
#endif
  if (nan != 0) return StoreLanesWithNan(to, first, second);
#if LATHE_ISA == 3
  const __m256i halves = _mm256_packus_epi32((__m256i)upper(first), (__m256i)upper(second));
  _mm256_storeu_si256((__m256i_u*)to, _mm256_permute4x64_epi64(halves, 0b11011000));
#else
  const __m128i halves = _mm_packus_epi32((__m128i)upper(first), (__m128i)upper(second));
  _mm_storeu_si128((__m128i_u*)to, halves);
#endif
}
#endif

// max(least, x) and min(most, x); NaN stays NaN. The compiler would make two instructions of `x <
// least ? least : x` for a register.
[[gnu::always_inline]] inline float AtLeast(float least, float x) { return x < least ? least : x; }
[[gnu::always_inline]] inline float AtMost(float most, float x) { return x > most ? most : x; }
#if LATHE_ISA >= 4
[[gnu::always_inline]] inline Lanes<float> AtLeast(Lanes<float> least, Lanes<float> x) {
  return (Lanes<float>)_mm512_maskz_max_ps(0xFFFF, (__m512)least, (__m512)x);
}
[[gnu::always_inline]] inline Lanes<float> AtMost(Lanes<float> most, Lanes<float> x) {
  return (Lanes<float>)_mm512_maskz_min_ps(0xFFFF, (__m512)most, (__m512)x);
}
#elif LATHE_ISA == 3
[[gnu::always_inline]] inline Lanes<float> AtLeast(Lanes<float> least, Lanes<float> x) {
  return (Lanes<float>)_mm256_max_ps((__m256)least, (__m256)x);
}
[[gnu::always_inline]] inline Lanes<float> AtMost(Lanes<float> most, Lanes<float> x) {
  return (Lanes<float>)_mm256_min_ps((__m256)most, (__m256)x);
}
#else
[[gnu::always_inline]] inline Lanes<float> AtLeast(Lanes<float> least, Lanes<float> x) {
  return (Lanes<float>)_mm_max_ps((__m128)least, (__m128)x);
}
[[gnu::always_inline]] inline Lanes<float> AtMost(Lanes<float> most, Lanes<float> x) {
  return (Lanes<float>)_mm_min_ps((__m128)most, (__m128)x);
}
#endif

template <typename M>
[[gnu::always_inline]] inline M SumOfLanes(Lanes<M> x) {
  typedef std::conditional_t<sizeof(M) == 8, int64_t, int32_t> Index;
  typedef Index Indices __attribute__((vector_size(kRegisterBytes)));
#pragma GCC unroll 4
  for (int64_t distance = kLanesOf<M> / 2; distance > 0; distance /= 2) {
    Indices from;
    for (int64_t i = 0; i < kLanesOf<M>; ++i)
      from[i] = static_cast<Index>((i + distance) % kLanesOf<M>);
    x += Shuffled(x, x, from);
  }
  return x[0];
}

// The number of independent sums, or chains, between which ForLanes alternates.
constexpr int kChains = 2;

template <typename M>
[[gnu::always_inline]] inline M SumOfChains(const Lanes<M> (&sums)[kChains]) {
  static_assert(kChains == 2);
  return SumOfLanes<M>(sums[0] + sums[1]);
}

// Calls f(i, chain, which) for each register of n elements, where i is the register's first
// element. The registers of each pair belong to different chains, 0 and 1, so that neither waits
// for the other's sum.
template <typename M, typename F>
[[gnu::always_inline]] inline void ForLanes(int64_t n, const F& f) {
  constexpr int64_t kStep = kLanesOf<M>;
  int64_t i = 0;
  for (; i + kChains * kStep <= n; i += kChains * kStep) {
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain) f(i + chain * kStep, chain, AllLanes{});
  }
  for (; i + kStep <= n; i += kStep) f(i, 0, AllLanes{});
  if (i < n) f(i, 0, FirstLanes{n - i});
}

// Does the same with an f that returns the register, which is stored at to + i. Both registers of a
// pair are computed before they are stored.
template <typename T, typename F>
[[gnu::always_inline]] inline void StoreEachLanes(T* to, int64_t n, const F& f) {
  static_assert(kChains == 2);
  using M = MathType<T>;
  constexpr int64_t kStep = kLanesOf<M>;
  int64_t i = 0;
  for (; i + 2 * kStep <= n; i += 2 * kStep) {
    const Lanes<M> first = f(i, 0, AllLanes{}), second = f(i + kStep, 1, AllLanes{});
    StoreTwoLanes(to + i, first, second);
  }
  for (; i + kStep <= n; i += kStep) StoreLanes(to + i, f(i, 0, AllLanes{}), AllLanes{});
  if (i < n) StoreLanes(to + i, f(i, 0, FirstLanes{n - i}), FirstLanes{n - i});
}

// A single element instead of a register, of type M instead of Lanes<M>.
struct OneLane {};
template <typename T>
[[gnu::always_inline]] inline MathType<T> LoadLanes(const T* x, OneLane) {
  return Load(*x);
}
template <typename T>
[[gnu::always_inline]] inline void StoreLanes(T* to, MathType<T> x, OneLane) {
  Store(*to, x);
}

// Calls f(i, AllLanes{}) for each register of n elements, and f(i, OneLane{}) for each element that
// is left. Unlike ForLanes it suits an f with a loop of its own.
template <typename M, typename F>
[[gnu::always_inline]] inline void ForLanesAndRest(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanesOf<M> <= n; i += kLanesOf<M>) f(i, AllLanes{});
  for (; i < n; ++i) f(i, OneLane{});
}

}  // namespace
}  // namespace lathe::cpu
