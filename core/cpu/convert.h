// Conversions between float32 and bfloat16: of single elements for kernels, of whole arrays for all
// other code.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/isa.h"

namespace lathe::cpu {

// The type in which a kernel computes if its activations are stored as T. Its statistics and
// parameters have this type, too.
template <typename T>
using MathType =
    std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

// Always inlined, because kernels include this header at several instruction set levels.
[[gnu::always_inline]] inline float Load(const float& x) { return x; }
[[gnu::always_inline]] inline double Load(const double& x) { return x; }
[[gnu::always_inline]] inline float Load(const BFloat16& x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
[[gnu::always_inline]] inline float Load(const Float16& x) { return x; }
[[gnu::always_inline]] inline void Store(Float16& to, float x) { to = Float16(x); }
[[gnu::always_inline]] inline void Store(float& to, float x) { to = x; }
[[gnu::always_inline]] inline void Store(double& to, double x) { to = x; }
// Rounds to nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline void Store(BFloat16& to, float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = u + 0x7fff + (u >> 16 & 1);
  to.bits = static_cast<uint16_t>((x != x ? u | 0x400000 : rounded) >> 16);
}

struct ConvertKernels {
  void (*to_bf16)(BFloat16* to, const float* from, int64_t n);
  void (*to_f32)(float* to, const BFloat16* from, int64_t n);
  // to += x
  void (*add_bf16)(BFloat16* to, const BFloat16* x, int64_t n);
  void (*add_f32)(float* to, const float* x, int64_t n);
};

}  // namespace lathe::cpu
