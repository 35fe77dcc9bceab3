// Emulates products of tensor cores and the loads of their operands. The layouts are those of PTX's
// mma.m16n8k16 and ldmatrix.x4.
#include <cuda_runtime.h>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {

void MultiplyAccumulate(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        float (*widen)(uint16_t)) {
  // A lane that has come to the next product has read these operands, so two places take turns.
  Thread::Operands& mine = current->operands[current->products++ % 2];
  const auto widen_word = [widen](uint32_t word, float(&to)[2]) {
    to[0] = widen(static_cast<uint16_t>(word));
    to[1] = widen(static_cast<uint16_t>(word >> 16));
  };
  for (unsigned i = 0; i < 4; ++i) widen_word(a[i], mine.a[i]);
  for (unsigned i = 0; i < 2; ++i) widen_word(b[i], mine.b[i]);
  bool present[32];
  const uint64_t* brought = ExchangeInWarp(~0u, ToBits(&mine), present);
  const Thread::Operands* all[32];
  for (unsigned lane = 0; lane < 32; ++lane)
    all[lane] = FromBits<const Thread::Operands*>(brought[lane]);
  const unsigned g = Lane() / 4, t = Lane() % 4;
  float sums[4] = {};  // of rows g and g + 8, each of columns 2 t and 2 t + 1
  for (unsigned half = 0; half < 2; ++half) {
    for (unsigned word = 0; word < 4; ++word) {
      const auto& left = all[4 * g + word]->a;
      const auto& first = all[8 * t + word]->b[half];
      const auto& second = all[8 * t + 4 + word]->b[half];
      for (unsigned e = 0; e < 2; ++e) {
        const float upper = left[2 * half][e], lower = left[2 * half + 1][e];
        sums[0] += upper * first[e];
        sums[1] += upper * second[e];
        sums[2] += lower * first[e];
        sums[3] += lower * second[e];
      }
    }
  }
  for (unsigned i = 0; i < 4; ++i) c[i] += sums[i];
}

void LoadMatrices(uint32_t (&to)[4], const void* row, bool transposed) {
  bool present[32];
  const uint64_t* brought = ExchangeInWarp(~0u, ToBits(row), present);
  const unsigned g = Lane() / 4, t = Lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    uint16_t halves[2];
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned r = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
      const auto* from = FromBits<const unsigned char*>(brought[8 * i + r]);
      if (reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
      std::memcpy(&halves[e], from + 2 * column, 2);
    }
    to[i] = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
  }
}

}  // namespace lathe::emulator
