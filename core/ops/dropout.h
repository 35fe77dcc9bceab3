// Dropout with masks that are computed, never stored (core/philox.h).
#pragma once

#include "lathe/core/philox.h"
#include "lathe/core/tensor.h"

namespace lathe {

namespace cpu {
struct DropoutMask;  // core/cpu/dropout.h
}

// Which elements are dropped: a function of the key and, for each row, of its sample's place in the
// global batch and its position in the sequence. So neither packing nor the number of processes or
// threads matters.
struct DropoutSpec {
  double p = 0;  // in [0, 1); 0: none
  RandomKey key = {};
  Tensor row_samples = {};    // [rows] i32, where the activations are
  Tensor row_positions = {};  // [rows] i32
  // [1] i32, where the activations are: takes the place of key.step, so that work that is recorded
  // once (core/device_backend.h) drops other elements in each step. Undefined on the host.
  Tensor device_step = {};
};

// What kernels take; checks p and, where `rows` >= 0, the row arrays, which must lie on `device`,
// as the activations do.
cpu::DropoutMask MaskOf(const DropoutSpec& spec, const char* op, int64_t rows, Device device = {});

// x: [N, C]; on the host float32 or float64, elsewhere float32, bfloat16 or float16. Keeps each
// element with probability 1 - p, times 1 / (1 - p).
Tensor Dropout(const Tensor& x, const DropoutSpec& spec);

// The same from single ops and Philox's definition: documentation and test oracle.
Tensor DropoutComposed(const Tensor& x, const DropoutSpec& spec);

}  // namespace lathe
