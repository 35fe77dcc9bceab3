// Types of what kernels read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lathe/core/dtype.h"

namespace lathe::cuda {

// Calls body(T{}) for float, BFloat16 and Float16; throws `[op] ...` for others.
template <typename Body>
void DispatchNumbers(const char* op, DType type, Body body) {
  if (type == DType::kF32) return body(float{});
  if (type == DType::kBF16) return body(BFloat16{});
  if (type == DType::kF16) return body(Float16{});
  throw InvalidArgument(std::string("[") + op + "] " + ToString(type) + " has no kernel on a GPU");
}

// N elements that one instruction loads or stores; 16 bytes at most.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};
template <typename T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

// Whether all of these allow 16-byte loads and stores.
template <typename... Pointers>
bool Aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace lathe::cuda
