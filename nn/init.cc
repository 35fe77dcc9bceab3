#include "lathe/nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lathe/core/base/philox.h"
#include "lathe/core/cpu/normal.h"

namespace lathe {
namespace {

// Returns a number in (0, 1), never 0, so that its logarithm is finite.
double Unit(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// Returns the random numbers of elements 4 * index to 4 * index + 3.
PhiloxBlock BlockOf(int64_t index, uint32_t key0, uint32_t key1) {
  return Philox4x32({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
                    key0, key1);
}

// Draws again, from separate counters, until the value lies within the cut-off.
double TruncatedNormal(double value, double cutoff, int64_t element, uint32_t key0, uint32_t key1) {
  for (uint32_t attempt = 1; std::fabs(value) > cutoff; ++attempt) {
    const PhiloxBlock block = Philox4x32(
        {{static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), 1, attempt}}, key0,
        key1);
    value = std::sqrt(-2 * std::log(Unit(block.v[0]))) *
            std::cos(2 * std::numbers::pi * Unit(block.v[1]));
  }
  return value;
}

constexpr int64_t kAtATime = 1024;  // elements

template <typename T>
void FillSinusoids(T* out, int64_t rows, int64_t columns, bool in_pairs) {
  const int64_t half = (columns + 1) / 2;
  for (int64_t p = 0; p < rows; ++p) {
    T* const row = out + p * columns;
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = static_cast<double>(2 * i) / static_cast<double>(columns);
      const double angle = static_cast<double>(p) / std::pow(10000.0, exponent);
      const int64_t sine = in_pairs ? 2 * i : i, cosine = in_pairs ? 2 * i + 1 : half + i;
      row[sine] = static_cast<T>(std::sin(angle));
      if (cosine < columns) row[cosine] = static_cast<T>(std::cos(angle));
    }
  }
}

}  // namespace

void Fill(Tensor& tensor, const Init& init, uint64_t seed, std::string_view name) {
  if (init.kind == Init::Kind::kZeros || init.kind == Init::Kind::kOnes) {
    tensor.Fill(init.kind == Init::Kind::kOnes ? 1 : 0);
    return;
  }
  if (!tensor.device().is_cpu()) {
    Tensor drawn = Tensor::Empty(tensor.shape(), tensor.dtype());
    Fill(drawn, init, seed, name);
    return tensor.CopyFrom(drawn);
  }
  tensor.impl()->storage->BumpVersion();
  const uint64_t key = seed ^ HashName(name);
  const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  const auto& kernels = cpu::Kernels<cpu::NormalKernels>();
  DispatchFloat(tensor.dtype(), "init", [&](auto tag) {
    using T = decltype(tag);
    T* out = tensor.data<T>();
    const int64_t n = tensor.numel();
    if (init.kind == Init::Kind::kSinusoids) {
      Check(tensor.ndim() == 2 && tensor.dim(1) % 2 == 0, "init",
            "sinusoids need shape [P, 2 n] but got ", tensor.shape());
      return FillSinusoids(out, tensor.dim(0), tensor.dim(1), /*in_pairs=*/false);
    }
    if (init.kind == Init::Kind::kSinusoidPairs) {
      Check(tensor.ndim() == 2, "init", "sinusoids need shape [P, C] but got ", tensor.shape());
      return FillSinusoids(out, tensor.dim(0), tensor.dim(1), /*in_pairs=*/true);
    }
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t first = 0; first < n; first += kAtATime) {
      double values[kAtATime];
      const int64_t end = std::min(first + kAtATime, n), blocks = (end - first + 3) / 4;
      if (init.kind == Init::Kind::kUniform) {
        for (int64_t b = 0; b < blocks; ++b) {
          const PhiloxBlock block = BlockOf(first / 4 + b, key0, key1);
          for (int i = 0; i < 4; ++i)
            values[4 * b + i] = init.a + (init.b - init.a) * Unit(block.v[i]);
        }
      } else {
        kernels.fill(values, first / 4, blocks, key0, key1);
        for (int64_t i = first; i < end; ++i) {
          double& value = values[i - first];
          if (init.kind == Init::Kind::kTruncatedNormal)
            value = TruncatedNormal(value, init.b, i, key0, key1);
          value *= init.a;
        }
      }
      for (int64_t i = first; i < end; ++i) out[i] = static_cast<T>(values[i - first]);
    }
  });
  if (init.zero_row >= 0 && init.zero_row < tensor.dim(0))
    tensor.Slice(init.zero_row, init.zero_row + 1).Fill(0);
}

}  // namespace lathe
