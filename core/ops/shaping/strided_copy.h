// The copy that the ops of this folder share: elements from one tensor into another, with the
// dimensions in any order.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// Elements of a tensor as a copy visits them: the one at place p lies at
// begin + sum_d p[d] * strides[d].
struct StridedElements {
  Tensor tensor;
  Shape strides;
  int64_t begin = 0;
};

// Copies the elements at all places of `sizes`. Both tensors lie on one device and have one dtype,
// whichever. No element may be written twice. Records nothing.
void CopyStrided(const char* op, const Shape& sizes, const StridedElements& from,
                 const StridedElements& to);

// Returns the strides of a contiguous tensor.
Shape ContiguousStrides(const Shape& shape);

}  // namespace lathe
