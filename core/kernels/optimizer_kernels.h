// Declares the device's kernels for optimizers, clipping and loss scaling.
#pragma once

#include <cstdint>
#include <span>

#include "lathe/core/base/dtype.h"

namespace lathe {

// A range of the arena, float32. Elements between ranges are left as they are.
struct DeviceRange {
  int64_t begin = 0, n = 0;
  int64_t first_chunk = 0;  // set by NumberChunks
  void* narrow = nullptr;   // (n), receives the new values in the narrow dtype; null: none
  double weight_decay = 0;
  int32_t group = 0;    // index of its parameter group, for the learning rate
  int32_t counter = 0;  // index of the counter of its updates
  bool operator==(const DeviceRange&) const = default;
};
// The constants of one update of a range.
// Comments name AdamW and SGD; core/kernels/update_rules.h says what the others keep there.
struct DeviceRates {
  float decay = 1;          // AdamW: 1 - lr * weight_decay; SGD: weight_decay
  float step_size = 0;      // AdamW: lr / (1 - beta1^t); SGD: lr
  float inverse_bias2 = 1;  // AdamW: 1 / sqrt(1 - beta2^t)
  float take = 1;           // SGD: the part of the gradient that enters the momentum buffer
  bool operator==(const DeviceRates&) const = default;
};
enum class RateKind : uint8_t { kSgd, kAdamW, kAdam, kLion, kAdagrad, kLamb, kAdafactor };
// How DeviceRates follow from the learning rate, the weight decay and t, the number of the range's
// update.
struct RateRule {
  RateKind kind = RateKind::kSgd;  // kSgd: `take` is 1 for t = 1, then 1 - dampening
  double beta1 = 0, beta2 = 0, dampening = 0;
  double decay = 0;      // kAdagrad: the decay of the rate; kAdafactor: the power of t
  bool limited = false;  // kAdafactor: the rate is at most 1 / sqrt(t)
  bool operator==(const RateRule&) const = default;
};
// The state of a loss scaler, on the device, and its rule (optim/grad_scaler.h).
struct ScalerState {
  float scale = 1;
  int32_t stepped = 0;         // 1: a step was due since the last backward pass
  int32_t skipped = 0;         // 1: an optimizer skipped that step
  int64_t growth_tracker = 0;  // successive steps that were taken
  int64_t num_skipped = 0;
};
struct ScalerRule {
  float growth_factor, backoff_factor;
  int64_t growth_interval;
};
// The steps of one optimizer, on the device.
struct DeviceStepCounts {
  int32_t found_inf = 0;  // 1: a gradient of the present step is not finite
  int32_t skipped = 0;    // 1: the last step was skipped
  int64_t taken = 0;      // steps taken so far
  int64_t advanced = 0;   // schedule steps so far that count
};

// The inputs of clipping besides the gradients. They lie on the device, so that a recorded launch
// stays valid when they change.
struct ClipValues {
  float max_norm = 0;
  float smallest_scale = 0;       // overflow is harmless while a scaler's scale is at least this
  float* results = nullptr;       // (2), receives the norm and the scale, 1 without a scaler
  const float* losses = nullptr;  // (num_losses)
  int64_t num_losses = 0;
};
// The inputs of a step besides the gradients; on the device for the same reason.
struct RateValues {
  // The number of schedule steps since the previous optimizer step. They count if that was not
  // skipped.
  int64_t advance = 0;
  int64_t advanced = 0;   // DeviceStepCounts::advanced when the first rate holds
  int64_t num_rates = 1;  // of each group: rate i is for i schedule steps after `advanced`
};
// A step that the device itself may skip or hold back, because of a loss scaler or of clipping. If
// all pointers are null, the step is always taken.
struct SkippableStep {
  ScalerState* scaler = nullptr;      // null: no scaler
  DeviceStepCounts* steps = nullptr;  // without a scaler, only `taken` is kept
  const float* clip = nullptr;        // factor of the gradients; null: 1
  float* factor = nullptr;  // with a scaler: receives *clip, or NaN if the step is skipped
  bool operator==(const SkippableStep&) const = default;
};
constexpr int64_t kDeviceChunk = 4096;  // elements that one block updates
// Sets first_chunk of every range. Returns the number of chunks: `chunks` below.
inline int64_t NumberChunks(std::span<DeviceRange> ranges) {
  int64_t chunks = 0;
  for (DeviceRange& range : ranges) {
    range.first_chunk = chunks;
    chunks += (range.n + kDeviceChunk - 1) / kDeviceChunk;
  }
  return chunks;
}

struct AdamWConstants {
  float one_minus_beta1, beta2, one_minus_beta2, eps;  // rest: 1 - beta in double, then rounded
  bool operator==(const AdamWConstants&) const = default;
};
struct SgdConstants {
  float momentum;
  bool nesterov;
  bool operator==(const SgdConstants&) const = default;
};

// Passes over whole arenas of parameters, gradients and moments; all pointers are the device's. The
// formulas are those of core/cpu/optimizer.h and optim/. `clip` is one element, a factor of all
// gradients; null: 1. If it is not finite, nothing is changed.
struct DeviceOptimizerKernels {
  // Increments the counter of each range and sets the rates of that update. ranges, rates: (count);
  // lrs: (groups, values->num_rates). With a scaler, the step is taken, or skipped if a gradient is
  // not finite; scaler and DeviceStepCounts note which. Counters and rates stay as they are if the
  // step is skipped, or held back because *scaled.clip is not finite.
  void (*rates)(DeviceRates* rates, int64_t* counters, const DeviceRange* ranges, int64_t count,
                const RateRule& rule, const RateValues* values, const double* lrs,
                const SkippableStep& scaled);
  // p, m, v, g: whole arenas. ranges: (count), without common elements. narrow_type: bf16 or f16.
  void (*adamw)(float* p, float* m, float* v, const float* g, const DeviceRange* ranges,
                const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
                const AdamWConstants& constants, const float* clip);
  // buffer: the momentum buffer; null without momentum.
  void (*sgd)(float* p, float* buffer, const float* g, const DeviceRange* ranges,
              const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
              const SgdConstants& constants, const float* clip);
  // result: one element, the L2 norm of g (n). Sums are double, in a fixed order.
  int64_t (*norm_scratch_bytes)(int64_t n);
  void (*norm)(float* result, const float* g, int64_t n, void* scratch, int64_t scratch_bytes);
  // factor = min(1, max_norm / (norm + 1e-6)), or NaN, which stops the update, if the norm is not
  // finite. A latch, if given, turns NaN with the first bad step and makes all later factors NaN. A
  // step is bad if one of values->losses or the factor is not finite. But while the scale is at
  // least values->smallest_scale, a factor that is not finite stops only its own step. scaler,
  // latch: null if there is none.
  void (*clip)(float* factor, const float* norm, const ClipValues* values, float* latch,
               const ScalerState* scaler);
  // Limits g to [-limit, limit]; NaN stays NaN.
  void (*clamp)(float* g, int64_t n, float limit);
  // Applies the scaler's rule if a step was due since the last pass. Called before each backward
  // pass.
  void (*begin_pass)(ScalerState* scaler, const ScalerRule& rule);
  // g /= scale. Sets steps->found_inf to 1 if any quotient is not finite, else to 0.
  void (*unscale)(float* g, int64_t n, const ScalerState* scaler, DeviceStepCounts* steps);
};

}  // namespace lathe
