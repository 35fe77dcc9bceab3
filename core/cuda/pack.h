// Packs: several elements that one load or store of up to 16 bytes moves, and flat loops over them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "lathe/core/cuda/launch.h"

namespace lathe::cuda {

// The number of elements of T in 16 bytes.
template <typename T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// N consecutive elements in their stored form.
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T v[N];
};

// The addresses are aligned to 16 bytes, or to the size of all N elements if that is less.
template <int N, typename T>
__device__ inline Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <typename T, int N>
__device__ inline void StorePack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Calls body(i, integral_constant<int, count>) in a flat kernel, for elements i to i + count - 1.
// The count is N but for the last n % N elements, which come one by one.
template <int N, typename Body>
__device__ inline void ForFlat(int64_t n, Body body) {
  const int64_t packs = n / N;
  for (int64_t i = GlobalThread(); i < packs; i += NumThreads()) {
    body(i * N, std::integral_constant<int, N>{});
  }
  const int64_t i = packs * N + GlobalThread();
  if (N > 1 && i < n) body(i, std::integral_constant<int, 1>{});
}

// Returns true if all of these addresses allow loads of 16 bytes. Null addresses count as aligned.
inline bool Aligned16(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  return true;
}

// Calls body(integral_constant<int, N>) with the pack size that the addresses allow, kPack<T> or 1.
template <typename T, typename Body>
void WithPack(std::initializer_list<const void*> addresses, Body body) {
  if (Aligned16(addresses)) return body(std::integral_constant<int, kPack<T>>{});
  body(std::integral_constant<int, 1>{});
}

}  // namespace lathe::cuda
