// Dropout masks on the CPU.
//
// Element `column` of row r is dropped if its 32 Philox bits are below the threshold. The bits
// depend on (seed, site, step, sample, position, column) alone. A row of n columns has nb = ceil(n
// / 4) Philox blocks; column w * nb + b is word w of block b.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/isa.h"
#include "lathe/core/base/philox.h"

namespace lathe::cpu {

// The arguments of a kernel that are about dropout; `threshold` 0 means none.
struct DropoutMask {
  uint32_t threshold = 0;
  double scale = 1;  // 1 / (1 - p)
  uint32_t key0 = 0, key1 = 0, step = 0;
  const int32_t* row_samples = nullptr;    // [rows]
  const int32_t* row_positions = nullptr;  // [rows]
  const int32_t* device_step = nullptr;  // if set, holds the step in place of `step`; devices only
};

struct DropoutKernels {
  // out = x * mask * scale, [rows, n]; out may be x.
  void (*f32)(const float* x, float* out, int64_t rows, int64_t n, const DropoutMask& mask);
  void (*f64)(const double* x, double* out, int64_t rows, int64_t n, const DropoutMask& mask);
  // Null on the host.
  void (*bf16)(const BFloat16* x, BFloat16* out, int64_t rows, int64_t n,
               const DropoutMask& mask) = nullptr;
  void (*f16)(const Float16* x, Float16* out, int64_t rows, int64_t n,
              const DropoutMask& mask) = nullptr;
};

}  // namespace lathe::cpu
