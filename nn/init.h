// Initialisers: descriptions of a fresh parameter's values, which can be applied later.
#pragma once

#include <cstdint>
#include <string_view>

#include "lathe/core/tensor.h"

namespace lathe {

struct Init {
  enum class Kind {
    kZeros,
    kOnes,
    kNormal,
    kTruncatedNormal,
    kUniform,
    kSinusoids,
    kSinusoidPairs
  };
  Kind kind = Kind::kZeros;
  double a = 0;  // standard deviation; lower bound for kUniform
  double b = 0;  // cut-off in standard deviations for kTruncatedNormal; upper bound for kUniform
  int64_t zero_row = -1;  // this row is zeroed afterwards (an embedding's padding row)

  static Init Zeros() { return {}; }
  static Init Ones() { return {.kind = Kind::kOnes}; }
  static Init Normal(double std_dev, int64_t zero_row = -1) {
    return {.kind = Kind::kNormal, .a = std_dev, .zero_row = zero_row};
  }
  static Init TruncatedNormal(double std_dev, double cutoff) {
    return {.kind = Kind::kTruncatedNormal, .a = std_dev, .b = cutoff};
  }
  static Init Uniform(double low, double high) {
    return {.kind = Kind::kUniform, .a = low, .b = high};
  }
  // For a table [P, 2 n] (Vaswani et al. 2017). Row p has the sines of p * 10000^(-i / n) for i
  // from 0 to n - 1, then their cosines.
  static Init Sinusoids() { return {.kind = Kind::kSinusoids}; }
  // The same for a table [P, C], but each sine is followed by its cosine: sin(p * r), cos(p * r)
  // with r = 10000^(-2 i / C) in columns 2 i and 2 i + 1.
  static Init SinusoidPairs() { return {.kind = Kind::kSinusoidPairs}; }
};

// Fills `tensor` (float32 or float64) with values that depend only on the seed, the name and the
// element's index.
void Fill(Tensor& tensor, const Init& init, uint64_t seed, std::string_view name);

}  // namespace lathe
