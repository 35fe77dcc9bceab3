// Which matrices of a product are transposed.
#pragma once

namespace lathe {

// For op(A) op(B): op(A) is A^T if `a` is set, else A; the same for B.
//
//   Tensor c = Matmul(a, b, {.b = true});  // A B^T
struct Transposes {
  bool a = false, b = false;
};

}  // namespace lathe
