// Declares the device's kernels that lay neighbouring rows side by side.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Where column c of tap t lies in a row of H columns and `taps` taps.
enum class UnfoldOrder {
  kTaps,          // t H + c: the row of each tap, from the first to the last
  kTapsReversed,  // the same, from the last to the first
  kColumns,       // c taps + t: all taps of column 0, then those of column 1, and so on
};

struct UnfoldArgs {
  const int32_t* cu_seqlens = nullptr;  // (batch + 1)
  int64_t batch = 0;
  int64_t rows = 0, columns = 0;  // of x; the rows may be more than the sequences have
  int64_t taps = 1;
  UnfoldOrder order = UnfoldOrder::kTaps;
  // Tap t of row r holds row r + t - before.
  constexpr int64_t before() const { return (taps - 1) / 2; }
  constexpr int64_t Place(int64_t t, int64_t c) const {
    if (order == UnfoldOrder::kColumns) return c * taps + t;
    return (order == UnfoldOrder::kTaps ? t : taps - 1 - t) * columns + c;
  }
};

// Elements are f32, bf16 or f16. Both kernels write all of their result.
struct UnfoldKernels {
  // y: (rows, taps * columns), x: (rows, columns)
  void (*forward)(void* y, const void* x, DType type, const UnfoldArgs& args);
  // dx: (rows, columns), dy: (rows, taps * columns). Sums run in float32, in the order of the taps.
  void (*backward)(void* dx, const void* dy, DType type, const UnfoldArgs& args);
};

}  // namespace lathe
