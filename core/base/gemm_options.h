// Settings for matrix products on devices. They apply to the whole process, to products queued
// afterwards. Any thread may change them.
#pragma once

#include <compare>

namespace lathe {

struct GemmOptions {
  // float32 products may round their inputs to TF32 (10 bits of mantissa), which is several times
  // as fast. LATHE_ALLOW_TF32=1 sets it.
  bool allow_tf32 = false;
  // The first product of each shape times the available algorithms and keeps the fastest one. So
  // results may differ in their last bits from run to run. The choices are saved for later
  // processes in a file that LATHE_TUNE_CACHE names. LATHE_TUNE=1 sets it.
  bool tune = false;
  // The same shape on the same device and library version always uses the same algorithm, one
  // without partial sums in shared memory. `tune` is ignored.
  bool deterministic = false;

  auto operator<=>(const GemmOptions&) const = default;
};

GemmOptions GetGemmOptions();
void SetGemmOptions(const GemmOptions& options);

// Set one option and leave the others as they are.
void AllowTf32(bool allow);
void TuneGemms(bool tune);
void UseDeterministicGemms(bool deterministic);

}  // namespace lathe
