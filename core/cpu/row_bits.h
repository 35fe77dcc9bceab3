// The random bits of dropout masks, many Philox blocks at once.
//
// For kernel sources only, which are compiled once for each instruction set level.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lathe::cpu {
namespace {

// Numbers of 32 bits in the lower halves of lanes of 64, whose upper halves count for nothing: what
// the processor multiplies in one instruction, where compilers take several.
#if LATHE_ISA >= 4
typedef uint64_t HalfLanes __attribute__((vector_size(64)));
typedef uint32_t FullLanes __attribute__((vector_size(64), aligned(4), may_alias));
[[gnu::always_inline]] inline HalfLanes WideProduct(HalfLanes a, HalfLanes b) {
  return (HalfLanes)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
}
#elif LATHE_ISA >= 3
typedef uint64_t HalfLanes __attribute__((vector_size(32)));
typedef uint32_t FullLanes __attribute__((vector_size(32), aligned(4), may_alias));
[[gnu::always_inline]] inline HalfLanes WideProduct(HalfLanes a, HalfLanes b) {
  return (HalfLanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
#else
typedef uint64_t HalfLanes __attribute__((vector_size(16)));
typedef uint32_t FullLanes __attribute__((vector_size(16), aligned(4), may_alias));
[[gnu::always_inline]] inline HalfLanes WideProduct(HalfLanes a, HalfLanes b) {
  return (HalfLanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
#endif
constexpr int64_t kPhiloxLanes = sizeof(FullLanes) / 4;

struct HalfBlocks {
  HalfLanes v[4];
};

// The key is one for all lanes.
[[gnu::always_inline]] inline HalfBlocks PhiloxRounds(HalfBlocks counter, uint32_t key0,
                                                      uint32_t key1) {
  const HalfLanes factor0 = HalfLanes{} + 0xD2511F53, factor1 = HalfLanes{} + 0xCD9E8D57;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const HalfLanes product0 = WideProduct(counter.v[0], factor0);
    const HalfLanes product1 = WideProduct(counter.v[2], factor1);
    counter = {{(product1 >> 32) ^ counter.v[1] ^ (HalfLanes{} + key0), product1,
                (product0 >> 32) ^ counter.v[3] ^ (HalfLanes{} + key1), product0}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// words[w][l]: word w of Philox4x32({first[l], second[l], third, fourth}), one register for each.
struct PhiloxWords {
  FullLanes words[4];
};
[[gnu::always_inline]] inline PhiloxWords PhiloxAt(FullLanes first, FullLanes second,
                                                   uint32_t third, uint32_t fourth, uint32_t key0,
                                                   uint32_t key1) {
  const HalfLanes c0 = (HalfLanes)first, c1 = (HalfLanes)second;
  const HalfLanes c2 = HalfLanes{} + third, c3 = HalfLanes{} + fourth;
  const HalfBlocks even = PhiloxRounds({{c0, c1, c2, c3}}, key0, key1);
  const HalfBlocks odd = PhiloxRounds({{c0 >> 32, c1 >> 32, c2, c3}}, key0, key1);
  PhiloxWords made;
  for (int w = 0; w < 4; ++w) {
    made.words[w] = (FullLanes)((even.v[w] & 0xFFFFFFFF) | odd.v[w] << 32);
  }
  return made;
}

[[gnu::always_inline]] inline FullLanes Counting(uint32_t from) {
  FullLanes lanes;
  for (int64_t l = 0; l < kPhiloxLanes; ++l) lanes[l] = from + static_cast<uint32_t>(l);
  return lanes;
}

// The bits of a row of n columns, as dropout.h says; room for 4 * ceil(n / 4).
[[gnu::always_inline]] inline void RowBits(uint32_t key0, uint32_t key1, uint32_t step,
                                           uint32_t sample, uint32_t position, int64_t n,
                                           uint32_t* bits) {
  const int64_t blocks = (n + 3) / 4;
  const FullLanes at = FullLanes{} + position;
  int64_t b = 0;
  for (; b + kPhiloxLanes <= blocks; b += kPhiloxLanes) {
    const PhiloxWords made =
        PhiloxAt(Counting(static_cast<uint32_t>(b)), at, sample, step, key0, key1);
    for (int w = 0; w < 4; ++w) {
      *reinterpret_cast<FullLanes*>(bits + w * blocks + b) = made.words[w];
    }
  }
  if (b == blocks) return;
  const PhiloxWords made =
      PhiloxAt(Counting(static_cast<uint32_t>(b)), at, sample, step, key0, key1);
  for (int w = 0; w < 4; ++w) {
    for (int64_t l = 0; b + l < blocks; ++l) bits[w * blocks + b + l] = made.words[w][l];
  }
}

}  // namespace
}  // namespace lathe::cpu
