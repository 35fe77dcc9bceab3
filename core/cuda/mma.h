// Products on tensor cores: one warp multiplies 16 x 16 by 16 x 8 elements. Other functions load
// and pack the operands. T is BFloat16 or Float16, and sums are float32.
//
// With g = lane / 4 and t = lane % 4, a lane holds four elements of the 16 x 8 result C. They lie
// in columns 2 t and 2 t + 1 of row g (c[0], c[1]) and of row g + 8 (c[2], c[3]). All lanes of the
// warp must call every function.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lathe/core/cuda/numeric.h"

namespace lathe::cuda {

#ifdef __CUDACC__

// Packs two elements, the first into the lower half.
template <typename T>
__device__ inline uint32_t Pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// c += a b
template <typename T>
__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Loads four 8 x 8 matrices from shared memory. Lane 8 i + r gives the address of row r of matrix
// i, a multiple of 16 bytes. A lane gets columns 2 t and 2 t + 1 of row g of each matrix.
__device__ inline void LoadMatrices(uint32_t (&to)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
// Does the same, but a lane gets rows 2 t and 2 t + 1 of column g of each matrix.
__device__ inline void LoadMatricesTransposed(uint32_t (&to)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}

#else

template <typename T>
uint32_t Pack(float low, float high) {
  T a, b;
  Store(a, low);
  Store(b, high);
  return a.bits | static_cast<uint32_t>(b.bits) << 16;
}
template <typename T>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  emulator::MultiplyAccumulate(c, a, b, [](uint16_t bits) {
    T x;
    x.bits = bits;
    return Load(x);
  });
}
inline void LoadMatrices(uint32_t (&to)[4], const void* row) {
  emulator::LoadMatrices(to, row, false);
}
inline void LoadMatricesTransposed(uint32_t (&to)[4], const void* row) {
  emulator::LoadMatrices(to, row, true);
}

#endif

// --- operands from matrices in shared memory, with `ld` elements from row to row ---

// Loads the left operand: rows r0 to r0 + 15, columns c0 to c0 + 15.
template <typename T>
__device__ inline void LoadLeft(uint32_t (&a)[4], const T* x, int ld, int r0, int c0) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(a, x + (r0 + lane % 16) * ld + c0 + lane / 16 * 8);
}
// Loads two right operands from the transpose of x: its rows k0 to k0 + 15. Columns n0 to n0 + 7 go
// to b[0] and b[1], columns n0 + 8 to n0 + 15 to b[2] and b[3].
template <typename T>
__device__ inline void LoadRightTransposed(uint32_t (&b)[4], const T* x, int ld, int k0, int n0) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(b, x + (n0 + lane / 16 * 8 + lane % 8) * ld + k0 + lane / 8 % 2 * 8);
}
// Does the same, but from x itself.
template <typename T>
__device__ inline void LoadRight(uint32_t (&b)[4], const T* x, int ld, int k0, int n0) {
  const int lane = threadIdx.x % 32;
  LoadMatricesTransposed(b, x + (k0 + lane % 16) * ld + n0 + lane / 16 * 8);
}

}  // namespace lathe::cuda
