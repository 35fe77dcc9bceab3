// The gradient of a look-up on a device: rows are added to those rows of a table that were taken.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Computes to[index[i]] += x[i], with each sum in a fixed order. to: [R, ...], x: [index.numel(),
// ...] of the same dtype, index: i32 or i64. All lie on one device other than the host. Ignores
// indices outside [0, R) and those equal to `skipped`.
void ScatterAddRowsOnDevice(const Tensor& to, const Tensor& x, const Tensor& index,
                            int64_t skipped = -1);

}  // namespace lathe
