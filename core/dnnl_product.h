// Matrix products by oneDNN, which prepares each for one shape. Prepared products are kept for the
// next use.
#pragma once

#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>

namespace lathe {

// A prepared product, and the size of the memory that it works in. The caller provides that memory
// for each run, so several threads may run one primitive at once.
struct DnnlPrimitive {
  dnnl::primitive primitive;
  dnnl::memory::desc scratchpad;
};

// C (M, N) = op(A) op(B) + bias, or C += op(A) op(B), row-major, in bfloat16 or float32. ld* are
// the row strides of A, B and C as stored.
struct DnnlMatmul {
  bool transpose_a, transpose_b, accumulate, bias;
  dnnl::memory::data_type input, output;
  int64_t M, N, K, lda, ldb, ldc;
  int threads = omp_get_max_threads();  // fixed when prepared: oneDNN divides the work then

  dnnl::memory::desc A() const {
    return {{M, K}, input, transpose_a ? dnnl::memory::dims{1, lda} : dnnl::memory::dims{lda, 1}};
  }
  dnnl::memory::desc B() const {
    return {{K, N}, input, transpose_b ? dnnl::memory::dims{1, ldb} : dnnl::memory::dims{ldb, 1}};
  }
  dnnl::memory::desc C() const { return {{M, N}, output, dnnl::memory::dims{ldc, 1}}; }
  dnnl::memory::desc Bias() const {
    return {{1, N}, dnnl::memory::data_type::f32, dnnl::memory::dims{N, 1}};
  }
  DnnlPrimitive Make() const;
  friend bool operator==(const DnnlMatmul&, const DnnlMatmul&) = default;
};

// C = x W^T + bias, dense float32 matrices: x (M, K), W (N, K).
struct DnnlDense {
  int64_t M, N, K;
  int threads = omp_get_max_threads();

  dnnl::memory::desc A() const { return Matrix(M, K); }
  dnnl::memory::desc B() const { return Matrix(N, K); }
  dnnl::memory::desc C() const { return Matrix(M, N); }
  dnnl::memory::desc Bias() const {
    return {{N}, dnnl::memory::data_type::f32, dnnl::memory::dims{1}};
  }
  DnnlPrimitive Make() const;
  friend bool operator==(const DnnlDense&, const DnnlDense&) = default;

 private:
  static dnnl::memory::desc Matrix(int64_t rows, int64_t columns) {
    return {{rows, columns}, dnnl::memory::data_type::f32, dnnl::memory::dims{columns, 1}};
  }
};

// A description and the product that oneDNN has prepared for it. Both functions may throw
// dnnl::error.
template <typename Description>
class DnnlProduct {
 public:
  explicit DnnlProduct(const Description& description);
  // bias: null if the description has none. Several threads may call this at once.
  void Run(const void* a, const void* b, void* c, const float* bias) const;

 private:
  Description description_;
  DnnlPrimitive made_;
};

}  // namespace lathe
