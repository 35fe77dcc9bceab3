// Standard normal random numbers, many at once.
#pragma once

#include <cstdint>

#include "lathe/core/base/isa.h"

namespace lathe::cpu {

struct NormalKernels {
  // out[4 b + i], for b below `blocks`, comes from block `first` + b of Philox
  // (core/base/philox.h), whose counter is that number. The four values of a block are those of Box
  // & Muller (1958), to 1e-14. `first` is a multiple of 16.
  void (*fill)(double* out, int64_t first, int64_t blocks, uint32_t key0, uint32_t key1);
};

}  // namespace lathe::cpu
