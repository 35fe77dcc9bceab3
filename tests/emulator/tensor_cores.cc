// Emulates products of tensor cores and the loads of their operands. The layouts are those of PTX's
// mma.m16n8k16 and ldmatrix.x4.
#include <cuda_runtime.h>

#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {
namespace {

uint16_t Half(uint32_t word, unsigned which) { return static_cast<uint16_t>(word >> 16 * which); }

}  // namespace

void MultiplyAccumulate(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        float (*widen)(uint16_t)) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine;
  std::copy_n(a, 4, mine.a);
  std::copy_n(b, 2, mine.b);
  bool present[32];
  const uint64_t* brought = ExchangeInWarp(~0u, ToBits(&mine), present);
  const Operands* all[32];
  for (unsigned lane = 0; lane < 32; ++lane) all[lane] = FromBits<const Operands*>(brought[lane]);
  const unsigned g = Lane() / 4, t = Lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + i / 2 * 8, column = 2 * t + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned x = all[row % 8 * 4 + k % 8 / 2]->a[row / 8 + k / 8 * 2];
      const unsigned y = all[column * 4 + k % 8 / 2]->b[k / 8];
      sum += widen(Half(x, k % 2)) * widen(Half(y, k % 2));
    }
    c[i] += sum;
  }
  ExchangeInWarp(~0u, 0, present);  // now nobody needs `mine` any more
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
