#include "lathe/core/cpu/normal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "lathe/core/cpu/dropout_bits.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kBlocks = 128;                      // Philox blocks at a time
constexpr uint64_t kTwoTo52 = uint64_t{0x433} << 52;  // the double 2^52; its mantissa counts ones

// Returns (bits + 0.5) / 2^32, in (0, 1). The bits become the low end of 2^52's mantissa.
[[gnu::always_inline]] inline double Unit(uint32_t bits) {
  return (std::bit_cast<double>(kTwoTo52 | bits) - 0x1p52 + 0.5) * 0x1p-32;
}

// Returns the natural logarithm of a positive normal number x = 2^e m with m between 1/sqrt(2) and
// sqrt(2). The series of artanh gives log(m) = 2 artanh((m - 1) / (m + 1)).
[[gnu::always_inline]] inline double Log(double x) {
  constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1, kOne = uint64_t{0x3FF} << 52;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  double e = std::bit_cast<double>(bits >> 52 | kTwoTo52) - (0x1p52 + 1023);
  double m = std::bit_cast<double>((bits & kMantissa) | kOne);
  const bool upper = m > std::numbers::sqrt2;
  m = upper ? m * 0.5 : m;
  e = upper ? e + 1 : e;
  const double s = (m - 1) / (m + 1), z = s * s;
  double p = 2.0 / 21;
  p = p * z + 2.0 / 19;
  p = p * z + 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  return e * std::numbers::ln2 + (s * z * p + 2 * s);
}

// Sets the sine and cosine of 2 pi u, for u in (0, 1). The Taylor series take the distance from the
// nearest quarter of a turn, which is at most an eighth of a turn.
[[gnu::always_inline]] inline void SinCos(double u, double& sin, double& cos) {
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer
  const double shifted = 4 * u + kRound;
  const uint64_t quarter = std::bit_cast<uint64_t>(shifted);  // its two lowest bits count
  const double a = (4 * u - (shifted - kRound)) * (std::numbers::pi / 2), z = a * a;
  double s = 1.0 / 355687428096000;
  s = s * z - 1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = s * z * a + a;
  double c = 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  c = c * z + 1.0;
  const bool odd = (quarter & 1) != 0;
  const double first = odd ? c : s, second = odd ? s : c;
  sin = (quarter & 2) != 0 ? -first : first;
  cos = ((quarter + 1) & 2) != 0 ? -second : second;
}

// Computes the numbers of blocks [first, first + n); n is at most kBlocks.
void FillSome(double* out, int64_t first, int64_t n, uint32_t key0, uint32_t key1) {
  alignas(64) uint32_t words[4][kBlocks];
  for (int64_t b = 0; b < n; b += kPhiloxLanes) {
    const uint64_t at = static_cast<uint64_t>(first + b);
    const FullLanes low[1] = {Counting(static_cast<uint32_t>(at))};
    const FullLanes high[1] = {FullLanes{} + static_cast<uint32_t>(at >> 32)};
    const PhiloxWords<1> made = PhiloxAt(low, high, 0, 0, key0, key1);
    for (int w = 0; w < 4; ++w) std::memcpy(words[w] + b, made.words[w], sizeof(low));
  }
  alignas(64) double values[4][kBlocks];
  for (int pair = 0; pair < 4; pair += 2) {
#pragma omp simd
    for (int64_t b = 0; b < n; ++b) {
      const double radius = std::sqrt(-2 * Log(Unit(words[pair][b])));
      double sin, cos;
      SinCos(Unit(words[pair + 1][b]), sin, cos);
      values[pair][b] = radius * cos;
      values[pair + 1][b] = radius * sin;
    }
  }
  for (int64_t b = 0; b < n; ++b) {
    for (int i = 0; i < 4; ++i) out[4 * b + i] = values[i][b];
  }
}

void FillBlocks(double* out, int64_t first, int64_t blocks, uint32_t key0, uint32_t key1) {
  for (int64_t b = 0; b < blocks; b += kBlocks)
    FillSome(out + 4 * b, first + b, std::min(kBlocks, blocks - b), key0, key1);
}

}  // namespace

template <>
const NormalKernels& TableOf<NormalKernels, LATHE_ISA>() {
  static constexpr NormalKernels table = {FillBlocks};
  return table;
}

}  // namespace lathe::cpu
