// Selects a kernel's element type.
#pragma once

#include <string>

#include "lathe/core/base/dtype.h"

namespace lathe::cuda {

// Calls body(T{}) with float, BFloat16 or Float16. Throws InvalidArgument("[op] ...") for any other
// type.
template <typename Body>
void DispatchNumbers(const char* op, DType type, Body body) {
  if (type == DType::kF32) return body(float{});
  if (type == DType::kBF16) return body(BFloat16{});
  if (type == DType::kF16) return body(Float16{});
  throw InvalidArgument(std::string("[") + op + "] " + ToString(type) + " has no kernel on a GPU");
}

}  // namespace lathe::cuda
