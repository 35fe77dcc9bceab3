#include "lathe/core/base/dtype.h"

#include <absl/strings/str_cat.h>

#include <cmath>

namespace lathe {

// Rounds to nearest, ties to even, with subnormals; overflow becomes infinity.
Float16::Float16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  const uint32_t magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    bits = sign | 0x7e00;
  } else if (magnitude >= 0x477ff000) {
    bits = sign | 0x7c00;
  } else if (magnitude < 0x38800000) {  // subnormal: in units of 2^-24
    bits = sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(std::fabs(value), 24)));
  } else {
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    bits = sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const int exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  }
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | static_cast<uint32_t>(exponent + 112) << 23 | mantissa << 13);
}

int64_t SizeOf(DType dtype) {
  return DispatchAll(dtype, [](auto tag) { return static_cast<int64_t>(sizeof(tag)); });
}

const char* ToString(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF64:
      return "float64";
    case DType::kI64:
      return "int64";
    case DType::kI32:
      return "int32";
    case DType::kU8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "?";
}

std::string ToString(Device device) {
  return device.is_cpu() ? "cpu" : absl::StrCat("cuda:", device.index);
}

}  // namespace lathe
