// How devices multiply matrices. The settings are the whole process's and hold for products that
// are queued afterwards; any thread may change them.
#pragma once

#include <compare>

namespace lathe {

struct GemmOptions {
  // Products of float32 may round their inputs to TF32 (10 bits of mantissa): several times as
  // fast. LATHE_ALLOW_TF32=1 sets it.
  bool allow_tf32 = false;
  // The first product of each shape times the algorithms that there are and keeps the fastest, so
  // results may differ in their last bits from run to run. What was found is kept in a file, which
  // LATHE_TUNE_CACHE names, for later processes. LATHE_TUNE=1 sets it.
  bool tune = false;
  // Always the same algorithm for a shape on the same device and library, without partial sums in
  // memory that is shared: `tune` is ignored.
  bool deterministic = false;

  auto operator<=>(const GemmOptions&) const = default;
};

GemmOptions GetGemmOptions();
void SetGemmOptions(const GemmOptions& options);

// One of them, the others as they are.
void AllowTf32(bool allow);
void TuneGemms(bool tune);
void UseDeterministicGemms(bool deterministic);

}  // namespace lathe
