// Flat passes over parameters, gradients and moments.
#pragma once

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

// One step's constants; those that depend on t alone are worked out in double, as PyTorch does.
struct AdamWStep {
  float decay;  // 1 - lr * weight_decay
  float beta2;
  float rest1, rest2;   // 1 - beta, not the difference of rounded values
  float step_size;      // lr / (1 - beta1^t)
  float inverse_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float grad_scale;  // gradients count times this
};

constexpr int64_t kAdamWBlock = 256;  // elements that become active together
constexpr uint8_t kNewlyActive = 2;   // moments still 0; the next pass makes it 1

// Consecutive elements.
struct Stretch {
  float* data;
  int64_t n;
};

// p, m, v: (n), updated from the gradients g. narrow, if given, gets the new values in bfloat16.
// active: (ceil(n / kAdamWBlock)) flags. A block that is not active has moments 0; while its
// gradients are 0, too, it is passed over, which changes nothing if step.decay is 1 and step.eps
// above 0. `marked`: every block with a gradient is active or newly so, and the others aren't
// looked at.
struct AdamWPart {
  float *p, *m, *v;
  BFloat16* narrow;
  uint8_t* active;
  bool marked;
  const float* g;
  int64_t n;
  AdamWStep step;
};

struct OptimizerKernels {
  // Threads share out all parts together: some are small, and of others much is passed over.
  void (*adamw)(const AdamWPart* parts, int64_t count);
  // In double; the order of the sum, and with it the last bit, does not depend on the number of
  // threads. Threads share whole stretches.
  double (*sum_of_squares)(const Stretch* stretches, int64_t count);
};

}  // namespace lathe::cpu
