#include "lathe/nn/init.h"

#include <cmath>
#include <numbers>

#include "lathe/core/philox.h"

namespace lathe {
namespace {

// In (0, 1): never 0, so that its logarithm is finite.
double Unit(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// Four standard normal values from one block (Box & Muller 1958).
void NormalBlock(const PhiloxBlock& block, double out[4]) {
  for (int i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log(Unit(block.v[i])));
    const double angle = 2 * std::numbers::pi * Unit(block.v[i + 1]);
    out[i] = radius * std::cos(angle);
    out[i + 1] = radius * std::sin(angle);
  }
}

// Draws again, from counters of its own, until the value lies within the cut-off.
double TruncatedNormal(double value, double cutoff, int64_t element, uint32_t key0, uint32_t key1) {
  for (uint32_t attempt = 1; std::fabs(value) > cutoff; ++attempt) {
    double redrawn[4];
    NormalBlock(Philox4x32({{static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32),
                             1, attempt}},
                           key0, key1),
                redrawn);
    value = redrawn[0];
  }
  return value;
}

}  // namespace

void Fill(Tensor& tensor, const Init& init, uint64_t seed, std::string_view name) {
  if (init.kind == Init::Kind::kZeros || init.kind == Init::Kind::kOnes) {
    tensor.Fill(init.kind == Init::Kind::kOnes ? 1 : 0);
    return;
  }
  if (tensor.device() != Device{}) {
    Tensor drawn = Tensor::Empty(tensor.shape(), tensor.dtype());
    Fill(drawn, init, seed, name);
    return tensor.CopyFrom(drawn);
  }
  tensor.impl()->storage->BumpVersion();
  const uint64_t key = seed ^ HashName(name);
  const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  DispatchFloat(tensor.dtype(), "init", [&](auto tag) {
    using T = decltype(tag);
    T* out = tensor.data<T>();
    const int64_t n = tensor.numel();
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t first = 0; first < n; first += 4) {
      const int64_t block_index = first / 4;
      const PhiloxBlock block = Philox4x32(
          {{static_cast<uint32_t>(block_index), static_cast<uint32_t>(block_index >> 32), 0, 0}},
          key0, key1);
      double values[4];
      if (init.kind == Init::Kind::kUniform) {
        for (int i = 0; i < 4; ++i) values[i] = init.a + (init.b - init.a) * Unit(block.v[i]);
      } else {
        NormalBlock(block, values);
        for (int i = 0; i < 4; ++i) {
          if (init.kind == Init::Kind::kTruncatedNormal) {
            values[i] = TruncatedNormal(values[i], init.b, first + i, key0, key1);
          }
          values[i] *= init.a;
        }
      }
      for (int64_t i = first; i < std::min(first + 4, n); ++i)
        out[i] = static_cast<T>(values[i - first]);
    }
  });
  if (init.zero_row >= 0 && init.zero_row < tensor.dim(0))
    tensor.Slice(init.zero_row, init.zero_row + 1).Fill(0);
}

}  // namespace lathe
