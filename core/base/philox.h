// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). A random number is a function of a counter and a key, without any state. So
// every thread, device and later run computes the same numbers.
#pragma once

#include <cstdint>
#include <string_view>

namespace lathe {

struct PhiloxBlock {
  uint32_t v[4];
};

// Always inlined, because kernels include this at several instruction set levels.
[[gnu::always_inline]] constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0,
                                                        uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter.v[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.v[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.v[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.v[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// Returns the FNV-1a hash. It gives each parameter and each place that draws random numbers its own
// number, from its path.
constexpr uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Selects the random numbers of one training run (seed), one batch (step) and one place in the
// model (site).
struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t site = 0;

  uint32_t key0() const {
    return static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(seed >> 32) * 0x85EBCA6B;
  }
  uint32_t key1() const { return site; }
};

// An element is dropped if its 32 random bits are below this threshold.
inline uint32_t DropThreshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace lathe
