// Declares the device's kernels for comparisons and for the choice between two tensors. The results
// are contiguous along the walk.
#pragma once

#include "lathe/core/base/dtype.h"
#include "lathe/core/kernels/shaping/operand_walk.h"

namespace lathe {

// What a comparison asks of two elements. kAnd and kOr are for bool and uint8, where every number
// but 0 is true.
enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kAnd, kOr };

// The function of two elements that a comparison stands for. A comparison with NaN is false, but
// for kNotEqual.
template <Comparison comparison>
struct Compared {
  template <typename T>
  constexpr bool operator()(T a, T b) const {
    if constexpr (comparison == Comparison::kEqual) {
      return a == b;
    } else if constexpr (comparison == Comparison::kNotEqual) {
      return a != b;
    } else if constexpr (comparison == Comparison::kLess) {
      return a < b;
    } else if constexpr (comparison == Comparison::kLessEqual) {
      return a <= b;
    } else if constexpr (comparison == Comparison::kAnd) {
      return a != 0 && b != 0;
    } else {
      return a != 0 || b != 0;
    }
  }
};

// Calls body(Compared<comparison>{}).
template <typename Body>
void WithComparison(Comparison comparison, Body body) {
  switch (comparison) {
    case Comparison::kEqual:
      return body(Compared<Comparison::kEqual>{});
    case Comparison::kNotEqual:
      return body(Compared<Comparison::kNotEqual>{});
    case Comparison::kLess:
      return body(Compared<Comparison::kLess>{});
    case Comparison::kLessEqual:
      return body(Compared<Comparison::kLessEqual>{});
    case Comparison::kAnd:
      return body(Compared<Comparison::kAnd>{});
    case Comparison::kOr:
      return body(Compared<Comparison::kOr>{});
  }
}

struct CompareKernels {
  // y = 1 where a and b compare so, else 0. The operands of the walk are a and b. Any type but f64;
  // bool counts as u8.
  void (*compare)(Comparison comparison, void* y, const void* a, const void* b, DType type,
                  const OperandWalk<2>& walk);
  // y = a where the condition is not 0, else b. The operands of the walk are the condition, a and
  // b. Elements of a, b and y have `size` bytes: 1, 2, 4 or 8.
  void (*select)(void* y, const void* condition, const void* a, const void* b, int64_t size,
                 const OperandWalk<3>& walk);
};

}  // namespace lathe
