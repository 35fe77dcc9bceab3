// The random bits of dropout masks, computed for many Philox blocks at once.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "lathe/core/cpu/level.h"

namespace lathe::cpu {
namespace {

// Numbers of 32 bits in the lower halves of lanes of 64 bits; the upper halves are ignored. The
// processor multiplies these in one instruction, where compilers take several.
typedef uint64_t HalfLanes __attribute__((vector_size(kRegisterBytes)));
typedef uint32_t FullLanes __attribute__((vector_size(kRegisterBytes)));
#if LATHE_ISA >= 4
[[gnu::always_inline]] inline HalfLanes WideProduct(HalfLanes a, HalfLanes b) {
  return (HalfLanes)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
}
#elif LATHE_ISA >= 3
[[gnu::always_inline]] inline HalfLanes WideProduct(HalfLanes a, HalfLanes b) {
  return (HalfLanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
#else
[[gnu::always_inline]] inline HalfLanes WideProduct(HalfLanes a, HalfLanes b) {
  return (HalfLanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
#endif
constexpr int64_t kPhiloxLanes = sizeof(FullLanes) / 4;

// The number of registers of counters that are worked on together. A round waits for its products,
// and the two halves of one register are too little work to fill that time.
constexpr int kPhiloxRegisters = 2;
constexpr int64_t kPhiloxTogether = kPhiloxRegisters * kPhiloxLanes;

// words[w][r] holds word w of the blocks of register r.
template <int registers>
struct PhiloxWords {
  FullLanes words[4][registers];
};

// Word w of register r, lane l is that of Philox4x32({first[r][l], second[r][l], third, fourth}).
template <int registers>
[[gnu::always_inline]] inline PhiloxWords<registers> PhiloxAt(const FullLanes (&first)[registers],
                                                              const FullLanes (&second)[registers],
                                                              uint32_t third, uint32_t fourth,
                                                              uint32_t key0, uint32_t key1) {
  const HalfLanes factor0 = HalfLanes{} + 0xD2511F53, factor1 = HalfLanes{} + 0xCD9E8D57;
  // The even lanes of each register come first, then the odd lanes of each.
  constexpr int kHalves = 2 * registers;
  HalfLanes v[4][kHalves], product0[kHalves], product1[kHalves];
  for (int r = 0; r < registers; ++r) {
    v[0][r] = (HalfLanes)first[r];
    v[1][r] = (HalfLanes)second[r];
    v[0][registers + r] = v[0][r] >> 32;
    v[1][registers + r] = v[1][r] >> 32;
  }
  for (int h = 0; h < kHalves; ++h) {
    v[2][h] = HalfLanes{} + third;
    v[3][h] = HalfLanes{} + fourth;
  }
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
    for (int h = 0; h < kHalves; ++h) {
      product0[h] = WideProduct(v[0][h], factor0);
      product1[h] = WideProduct(v[2][h], factor1);
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHalves; ++h) {
      v[0][h] = (product1[h] >> 32) ^ v[1][h] ^ (HalfLanes{} + key0);
      v[1][h] = product1[h];
      v[2][h] = (product0[h] >> 32) ^ v[3][h] ^ (HalfLanes{} + key1);
      v[3][h] = product0[h];
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  PhiloxWords<registers> made;
  for (int w = 0; w < 4; ++w) {
    for (int r = 0; r < registers; ++r) {
      made.words[w][r] = (FullLanes)((v[w][r] & 0xFFFFFFFF) | v[w][registers + r] << 32);
    }
  }
  return made;
}

// Returns from, from + 1, ... The lanes are written as constants, because GCC would fill them one
// by one from a loop.
[[gnu::always_inline]] inline FullLanes Counting(uint32_t from) {
#if LATHE_ISA >= 4
  return FullLanes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + from;
#elif LATHE_ISA >= 3
  return FullLanes{0, 1, 2, 3, 4, 5, 6, 7} + from;
#else
  return FullLanes{0, 1, 2, 3} + from;
#endif
}

// Computes the bits of a row of n columns in the order that dropout.h describes. `bits` has room
// for 4 * ceil(n / 4).
inline void DropoutBitsOfRow(uint32_t key0, uint32_t key1, uint32_t step, uint32_t sample,
                             uint32_t position, int64_t n, uint32_t* bits) {
  const int64_t blocks = (n + 3) / 4;
  const auto make = [&](int64_t b) __attribute__((always_inline)) {
    FullLanes counters[kPhiloxRegisters], positions[kPhiloxRegisters];
    for (int r = 0; r < kPhiloxRegisters; ++r) {
      counters[r] = Counting(static_cast<uint32_t>(b + r * kPhiloxLanes));
      positions[r] = FullLanes{} + position;
    }
    return PhiloxAt(counters, positions, sample, step, key0, key1);
  };
  int64_t b = 0;
  for (; b + kPhiloxTogether <= blocks; b += kPhiloxTogether) {
    const PhiloxWords made = make(b);
    for (int w = 0; w < 4; ++w) {
      std::memcpy(bits + w * blocks + b, made.words[w], sizeof(made.words[w]));
    }
  }
  if (b == blocks) return;
  const PhiloxWords made = make(b);
  for (int w = 0; w < 4; ++w) {
    std::memcpy(bits + w * blocks + b, made.words[w], static_cast<size_t>(blocks - b) * 4);
  }
}

}  // namespace
}  // namespace lathe::cpu
