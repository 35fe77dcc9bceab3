// Sums of rows by number on a device, for the gradients of look-ups.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// to[index[i]] += x[i], in a fixed order of the sums. to: [R, ...], x: [index.numel(), ...] of the
// same dtype, index: i32 or i64; all on one device that isn't the host. Numbers outside [0, R) and
// `skipped` are passed over.
void AddRowsOnDevice(const Tensor& to, const Tensor& x, const Tensor& index, int64_t skipped = -1);

}  // namespace lathe
