// Dropout. Its masks are computed when needed and never stored (core/base/philox.h).
#pragma once

#include "lathe/core/base/philox.h"
#include "lathe/core/tensor.h"

namespace lathe {

namespace cpu {
struct DropoutMask;  // core/cpu/dropout.h
}

// The probability and the mask of a dropout. The mask is a function of the key, the column and two
// numbers of the row. These are the sample's place in the global batch and the token's position in
// its sequence. So the mask does not depend on packing, nor on the number of ranks or threads.
struct DropoutSpec {
  double p = 0;  // the probability, in [0, 1); 0: no dropout
  RandomKey key = {};
  Tensor row_samples = {};    // [rows] i32, on the activations' device
  Tensor row_positions = {};  // [rows] i32
  // [1] i32 on the activations' device, undefined on the host. It replaces key.step. So work that
  // is recorded once (core/device_backend.h) drops other elements in each step.
  Tensor device_step = {};
};

// Returns the mask as kernels take it. Throws if p is out of range. With `rows` >= 0 also throws
// unless both row arrays have that many rows and lie on `device`, that of the activations.
cpu::DropoutMask MaskOf(const DropoutSpec& spec, const char* op, int64_t rows, Device device = {});

// Keeps each element of x with probability 1 - p, and multiplies it by 1 / (1 - p). x has shape
// [N, C] and is float32, bfloat16 or float64 on the host, and float32, bfloat16 or float16 on a
// device.
Tensor Dropout(const Tensor& x, const DropoutSpec& spec);

// Composes the same of single ops and Philox's definition: documentation and test oracle.
Tensor DropoutComposed(const Tensor& x, const DropoutSpec& spec);

}  // namespace lathe
