// Division and rounding upwards, for numbers of blocks and padded sizes.
//
//   const int64_t blocks = DivideUp(rows, rows_of_block);
//   const int64_t bytes = RoundUp(size, 256);  // the next multiple of 256
#pragma once

#include <cstdint>

namespace lathe {

// Both take an n >= 0 and a divisor > 0. They are always inlined, because kernels include this at
// several instruction set levels.

// Returns n / divisor, rounded up.
[[gnu::always_inline]] constexpr int64_t DivideUp(int64_t n, int64_t divisor) {
  return (n + divisor - 1) / divisor;
}

// Returns the smallest multiple of `step` that is not less than n.
[[gnu::always_inline]] constexpr int64_t RoundUp(int64_t n, int64_t step) {
  return DivideUp(n, step) * step;
}

}  // namespace lathe
