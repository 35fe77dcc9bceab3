// The hash of HashName (core/base/philox.h), FNV-1a, of bytes that come piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lathe/core/base/philox.h"

namespace lathe {

class RunningHash {
 public:
  void Add(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * kPrime;
  }
  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3u;
  static_assert((HashName("") ^ 'a') * kPrime == HashName("a"));
  uint64_t value_ = HashName("");
};

}  // namespace lathe
