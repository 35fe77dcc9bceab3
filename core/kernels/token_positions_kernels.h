// Declares the device's kernel that counts positions without padding tokens.
#pragma once

#include <cstdint>

namespace lathe {

struct TokenPositionsArgs {
  const int32_t* ids = nullptr;         // (rows)
  const int32_t* positions = nullptr;   // (rows)
  const int32_t* cu_seqlens = nullptr;  // (batch + 1)
  int64_t batch = 0, rows = 0;          // the rows may be more than the sequences have
  int32_t padding_id = 0;
};

struct TokenPositionsKernels {
  // Writes all of y: (rows), as TokenPositions in core/ops/segment/token_positions.h says.
  void (*positions)(int32_t* y, const TokenPositionsArgs& args);
};

}  // namespace lathe
