// Tensors as text, as NumPy prints arrays.
//
//   std::cout << Arange(6).Reshape({2, 3});
//   // [[0 1 2]
//   //  [3 4 5]]
#pragma once

#include <ostream>
#include <string>

#include "lathe/core/tensor.h"

namespace lathe {

// NumPy's defaults.
struct PrintOptions {
  int precision = 8;         // most digits behind the point
  int64_t threshold = 1000;  // a tensor with more elements is summarised with "..."
  int64_t edge_items = 3;    // elements of each dimension that a summary shows at each end
  int line_width = 75;       // lines are broken before this column
};

// Returns what str(array) is in NumPy 2.4 for an array of these values, and "undefined" or
// "unallocated" for a tensor without values. Floating numbers have as many digits as tell them from
// their neighbours of the same dtype. So they do in bfloat16, which NumPy does not have; its
// numbers get exponents where those of float32 do. A scalar is printed as a number. Reads the
// values from any device.
std::string ToString(const Tensor& x, const PrintOptions& options = {});

std::ostream& operator<<(std::ostream& out, const Tensor& x);

}  // namespace lathe
