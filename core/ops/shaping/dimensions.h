// Dimensions as callers name them, and those that ops reduce.
#pragma once

#include <algorithm>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// Returns `dim` counted from the front; a negative one counts from the end. Throws
// `[op] shape [2, 3] has no dimension 2`.
inline int CheckedDim(const char* op, const Shape& shape, int64_t dim) {
  const int64_t n = std::ssize(shape);
  Check(dim >= -n && dim < n, op, "shape ", shape, " has no dimension ", dim);
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

// Returns the dimensions in ascending order, counted from the front; all of them if `dims` is
// empty. Throws for a dimension that does not exist or that is named twice.
inline std::vector<int> CheckedDims(const char* op, const Shape& shape,
                                    const std::vector<int>& dims) {
  std::vector<int> checked;
  for (const int dim : dims) checked.push_back(CheckedDim(op, shape, dim));
  std::ranges::sort(checked);
  const auto twice = std::ranges::adjacent_find(checked);
  Check(twice == checked.end(), op, "dimension ", twice == checked.end() ? 0 : *twice,
        " is named twice");
  if (checked.empty()) {
    for (size_t d = 0; d < shape.size(); ++d) checked.push_back(static_cast<int>(d));
  }
  return checked;
}

// Returns `shape` with size 1 in place of the dimensions, or without them.
inline Shape ReducedShape(const Shape& shape, const std::vector<int>& dims, bool keepdim) {
  Shape reduced;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!std::ranges::binary_search(dims, static_cast<int>(d))) {
      reduced.push_back(shape[d]);
    } else if (keepdim) {
      reduced.push_back(1);
    }
  }
  return reduced;
}

// Returns the number of elements in dimensions [begin, end).
inline int64_t SizeOfDims(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t d = begin; d < end; ++d) n *= shape[d];
  return n;
}

}  // namespace lathe
