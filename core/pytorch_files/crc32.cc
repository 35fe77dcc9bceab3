#include "lathe/core/pytorch_files/crc32.h"

#include <immintrin.h>

#include <array>
#include <cstddef>

namespace lathe {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;  // 0x04c11db7 with its bits in reverse

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t Update(uint32_t crc, const unsigned char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) crc = crc >> 8 ^ kTable[(crc ^ bytes[i]) & 0xff];
  return crc;
}

// Returns x^n modulo the polynomial, in the form that a product of reflected numbers without
// carries needs: reflected, and one bit further to the left.
constexpr uint64_t Power(int n) {
  uint32_t rest = 1u << 31;  // x^0
  for (int i = 0; i < n; ++i) rest = rest >> 1 ^ (rest & 1 ? kPolynomial : 0);
  return static_cast<uint64_t>(rest) << 1;
}

// Multiplies 128 bits by x^bits modulo the polynomial, and adds `next`. `factors` holds the powers
// x^(bits + 32) and x^(bits - 32), of the half with the earlier bytes and of the other one.
__attribute__((target("pclmul,sse4.1"))) inline __m128i Fold(__m128i sum, __m128i factors,
                                                             __m128i next) {
  const __m128i early = _mm_clmulepi64_si128(sum, factors, 0x00);
  const __m128i late = _mm_clmulepi64_si128(sum, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(early, late), next);
}

// The same as Update, for a size that is a multiple of 64. Four sums of 128 bits take 64 bytes at
// once (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009).
__attribute__((target("pclmul,sse4.1"))) uint32_t UpdateByProducts(uint32_t crc,
                                                                   const unsigned char* bytes,
                                                                   size_t size) {
  const auto load = [&](size_t at) __attribute__((target("pclmul,sse4.1"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + at));
  };
  constexpr uint64_t kBy512[] = {Power(512 + 32), Power(512 - 32)};
  constexpr uint64_t kBy128[] = {Power(128 + 32), Power(128 - 32)};
  const __m128i by_512 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kBy512));
  const __m128i by_128 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kBy128));
  __m128i a = _mm_xor_si128(load(0), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i b = load(16), c = load(32), d = load(48);
  for (size_t at = 64; at < size; at += 64) {
    a = Fold(a, by_512, load(at));
    b = Fold(b, by_512, load(at + 16));
    c = Fold(c, by_512, load(at + 32));
    d = Fold(d, by_512, load(at + 48));
  }
  const __m128i sum = Fold(Fold(Fold(a, by_128, b), by_128, c), by_128, d);
  unsigned char rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), sum);
  return Update(0, rest, sizeof rest);
}

}  // namespace

uint32_t Crc32(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = text.size();
  uint32_t crc = 0xffffffff;
  if (size >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
    const size_t blocks = size / 64 * 64;
    crc = UpdateByProducts(crc, bytes, blocks);
    bytes += blocks;
    size -= blocks;
  }
  return ~Update(crc, bytes, size);
}

}  // namespace lathe
