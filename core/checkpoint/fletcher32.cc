#include "lathe/core/checkpoint/fletcher32.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lathe {
namespace {

// The sum of the words and the sum of all sums on the way, both modulo 65535. A sum that is not 0
// stays so: it is 65535 instead.
struct Sums {
  uint64_t sum = 0, sum_of_sums = 0;

  static uint64_t Fold(uint64_t value) {
    while (value > 0xffff) value = (value & 0xffff) + (value >> 16);
    return value;
  }
  // Adds `words` words, whose own sums are these.
  void Add(uint64_t words, uint64_t their_sum, uint64_t their_sum_of_sums) {
    sum_of_sums = Fold(sum_of_sums + words * sum + their_sum_of_sums);
    sum = Fold(sum + their_sum);
  }
};

}  // namespace

uint32_t Fletcher32(const void* data, size_t bytes) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint32_t kWords = 256;  // their sum of sums fits into 32 bits
  const auto* at = static_cast<const unsigned char*>(data);
  Sums sums;
  for (size_t left = bytes / 2; left > 0;) {
    const auto words = static_cast<uint32_t>(std::min<size_t>(left, kWords));
    uint16_t block[kWords];
    std::memcpy(block, at, words * sizeof block[0]);
    uint32_t sum = 0, sum_of_sums = 0;
#pragma omp simd reduction(+ : sum, sum_of_sums)
    for (uint32_t i = 0; i < words; ++i) {
      const uint32_t word = static_cast<uint16_t>(block[i] << 8 | block[i] >> 8);
      sum += word;
      sum_of_sums += (words - i) * word;  // the word is in as many of the sums
    }
    sums.Add(words, sum, sum_of_sums);
    at += words * sizeof block[0];
    left -= words;
  }
  if (bytes % 2 != 0) {
    const uint64_t word = uint64_t{*at} << 8;
    sums.Add(1, word, word);
  }
  return static_cast<uint32_t>(sums.sum_of_sums << 16 | sums.sum);
}

}  // namespace lathe
