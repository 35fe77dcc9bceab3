// Passes over flat arrays of parameters, gradients and moments.
#pragma once

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

// The constants of one optimizer step. The ones that depend on t alone are computed in double, as
// PyTorch does.
struct AdamWStep {
  float decay;  // 1 - lr * weight_decay
  float beta2;
  float one_minus_beta1, one_minus_beta2;  // 1 - beta1 and 1 - beta2, rounded after the subtraction
  float step_size;                         // lr / (1 - beta1^t)
  float inverse_bias2;                     // 1 / sqrt(1 - beta2^t)
  float eps;
  float grad_scale;  // the gradients are multiplied by this
};

constexpr int64_t kAdamWBlock = 256;  // elements that become active together
constexpr uint8_t kNewlyActive = 2;   // its moments are still 0; the next pass sets the flag to 1

// A range of an array.
struct FloatRange {
  float* data;
  int64_t n;
};

// A range of the arena to update. p, m, v: (n), updated from the gradients g. narrow: (n) gets the
// new values in bfloat16, unless it is null. active: (ceil(n / kAdamWBlock)), a flag for each
// block. A block that is not active has moments 0. It is skipped as long as its gradients are 0,
// too; that changes nothing if step.decay is 1 and step.eps is above 0. If `marked`, every block
// with a gradient is already active or newly active, and the gradients of other blocks are not
// read.
struct AdamWRange {
  float *p, *m, *v;
  BFloat16* narrow;
  uint8_t* active;
  bool marked;
  const float* g;
  int64_t n;
  AdamWStep step;
};

struct OptimizerKernels {
  // Updates all ranges. Threads share the work of all ranges together, because some are small and
  // much of others is skipped.
  void (*adamw)(const AdamWRange* ranges, int64_t count);
  // Returns the sum of squares in double. Threads share whole ranges. The order of the sum, and
  // with it the last bit, does not depend on the number of threads.
  double (*sum_of_squares)(const FloatRange* ranges, int64_t count);
};

}  // namespace lathe::cpu
