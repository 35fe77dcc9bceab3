// Element types and devices.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

#include "lathe/core/base/error.h"

namespace lathe {

enum class DType { kF32, kBF16, kF16, kF64, kI64, kI32, kU8, kBool };

// A bfloat16 value as stored: the upper half of a float. Conversion rounds to nearest, ties to
// even.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7fffffff) > 0x7f800000
               ? static_cast<uint16_t>(u >> 16 | 0x40)
               : static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// An IEEE binary16 value as stored.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  operator float() const;
};

template <typename T>
struct DTypeOf;
template <DType d>
using DTypeConstant = std::integral_constant<DType, d>;
template <>
struct DTypeOf<float> : DTypeConstant<DType::kF32> {};
template <>
struct DTypeOf<BFloat16> : DTypeConstant<DType::kBF16> {};
template <>
struct DTypeOf<Float16> : DTypeConstant<DType::kF16> {};
template <>
struct DTypeOf<double> : DTypeConstant<DType::kF64> {};
template <>
struct DTypeOf<int64_t> : DTypeConstant<DType::kI64> {};
template <>
struct DTypeOf<int32_t> : DTypeConstant<DType::kI32> {};
template <>
struct DTypeOf<uint8_t> : DTypeConstant<DType::kU8> {};
template <>
struct DTypeOf<bool> : DTypeConstant<DType::kBool> {};

int64_t SizeOf(DType dtype);        // bytes of one element
const char* ToString(DType dtype);  // "float32", "bfloat16", ...
inline bool IsFloating(DType d) {
  return d == DType::kF32 || d == DType::kBF16 || d == DType::kF16 || d == DType::kF64;
}

enum class DeviceType { kCPU, kCUDA };
struct Device {
  DeviceType type = DeviceType::kCPU;
  int index = 0;
  bool is_cpu() const { return type == DeviceType::kCPU; }
  friend bool operator==(const Device&, const Device&) = default;
};
std::string ToString(Device device);  // "cpu", "cuda:0"

// Calls `body(T{})` with the C++ type of `dtype`; throws `[op] ...` unless that is float or double.
template <typename Body>
auto DispatchFloat(DType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    default:
      throw InvalidArgument(
          std::string("[") + op + "] expected float32 or float64 but got " + ToString(dtype),
          "convert the tensor: x.To(DType::kF32)");
  }
}

// Calls `body(T{})` with the C++ type of any `dtype`.
template <typename Body>
auto DispatchAll(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BFloat16{});
    case DType::kF16:
      return body(Float16{});
    case DType::kF64:
      return body(double{});
    case DType::kI64:
      return body(int64_t{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kU8:
      return body(uint8_t{});
    case DType::kBool:
      return body(bool{});
  }
  throw InvalidArgument("unknown dtype");
}

}  // namespace lathe
