// Declares the device's kernels for the rules of core/kernels/update_rules.h.
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/core/kernels/update_rules.h"

namespace lathe {

// The memory of an update; all pointers are the device's. p, g and the moments are whole arenas.
struct UpdateMemory {
  float* p = nullptr;
  float* moments[update_rules::kMaxMoments] = {};  // null: not kept
  const float* g = nullptr;
  const DeviceRange* ranges = nullptr;  // (count), without common elements
  const DeviceRates* rates = nullptr;   // (count)
  int64_t count = 0, chunks = 0;
  DType narrow_type = DType::kBF16;
  const float* clip = nullptr;  // one element, a factor of all gradients; null: 1
  void* scratch = nullptr;      // UpdateScratchBytes(chunks, count, means)
};

// Updates the ranges by a rule. If *clip is not finite, nothing is changed. For Adafactor,
// moments[0] is the flat buffer of all parameters' factored moments.
template <typename Rule>
struct UpdateKernel {
  void (*run)(const UpdateMemory& memory, const Rule& rule);
};

// Returns the bytes of scratch memory of LAMB and Adafactor. means: the number of matrices of all
// parameters (FactoredShape).
constexpr int64_t UpdateScratchBytes(int64_t chunks, int64_t count, int64_t means) {
  return static_cast<int64_t>(sizeof(double)) * 2 * chunks +
         static_cast<int64_t>(sizeof(float)) * (count + means);
}

}  // namespace lathe
