// Several elements at a time: loads and stores of 16 bytes where the addresses allow them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "lathe/core/cuda/numeric.h"

namespace lathe::cuda {

// Elements of T in 16 bytes.
template <typename T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// N neighbouring elements as they are stored.
template <typename T, int N>
struct Pack {
  T v[N];
};

// from: aligned to 16 bytes, or to all N elements where they are fewer; any address for N = 1.
template <int N, typename T>
__device__ inline Pack<T, N> LoadPack(const T* from) {
  Pack<T, N> pack;
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  if constexpr (bytes % 16 == 0) {
    uint4 raw[bytes / 16];
    for (int i = 0; i < bytes / 16; ++i) raw[i] = reinterpret_cast<const uint4*>(from)[i];
    memcpy(&pack, raw, bytes);
  } else {
    for (int i = 0; i < N; ++i) pack.v[i] = from[i];
  }
  return pack;
}

template <typename T, int N>
__device__ inline void StorePack(T* to, const Pack<T, N>& pack) {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  if constexpr (bytes % 16 == 0) {
    uint4 raw[bytes / 16];
    memcpy(raw, &pack, bytes);
    for (int i = 0; i < bytes / 16; ++i) reinterpret_cast<uint4*>(to)[i] = raw[i];
  } else {
    for (int i = 0; i < N; ++i) to[i] = pack.v[i];
  }
}

// Whether all of these addresses, null ones included, allow loads of 16 bytes.
inline bool Aligned16(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  return true;
}

}  // namespace lathe::cuda
