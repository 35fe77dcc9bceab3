// Expresses a product of core/gemm.h for libraries with column-major matrices, and decides how it
// is computed. These functions need no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lathe/core/base/gemm_options.h"
#include "lathe/core/kernels/gemm_kernels.h"

namespace lathe::cuda {

// The extra work of a product.
enum class Epilogue {
  kNone,
  kBias,          // adds m elements of D's type to each column
  kBiasGradient,  // sums op(B)'s columns into n elements of D's type
};

// D = op(A) op(B) + beta D with D: [m, n], all column-major. A row-major matrix is its own
// transpose in column-major order, so C = op(A) op(B) becomes C' = op(B)' op(A)'. The choice of an
// algorithm depends on nothing but these fields, so equal problems share a plan.
struct GemmProblem {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;  // strides of columns
  DType type = DType::kF32, d_type = DType::kF32;
  bool accumulate = false;  // true if beta is 1
  Epilogue epilogue = Epilogue::kNone;
  int64_t batch = 1;  // number of products
  // The largest powers of 2, up to 256, that divide the addresses of A, B and D in the whole batch.
  int a_alignment = 256, b_alignment = 256, d_alignment = 256;
  bool tf32 = false, deterministic = false;

  // Return the sizes of the matrices as stored.
  int64_t a_rows() const { return transpose_a ? k : m; }
  int64_t a_columns() const { return transpose_a ? m : k; }
  int64_t b_rows() const { return transpose_b ? n : k; }
  int64_t b_columns() const { return transpose_b ? k : n; }

  // Returns true if the result can also be computed in another way, should the library have no
  // algorithm.
  bool is_optional() const { return epilogue != Epilogue::kNone || batch > 1; }

  bool operator==(const GemmProblem&) const = default;
};

struct GemmProblemHash {
  size_t operator()(const GemmProblem& problem) const;
};

// Returns the largest power of 2, up to 256, that divides the address.
int AlignmentOf(const void* address);

// Returns the column-major problem, whose A is args.b and whose B is args.a. Throws InvalidArgument
// for sizes, strides, types or a beta that core/gemm.h doesn't allow.
GemmProblem ToColumnMajor(const GemmArgs& args, const GemmOptions& options);

// Returns the i-th product of a batch as a single product.
GemmArgs ProductOfBatch(const GemmArgs& args, int64_t i);

// Describes the problem in the caller's terms, like "(M, N, K) = (128, 768, 3072), bfloat16,
// transposed B".
std::string Describe(const GemmProblem& problem);

// The place where partial sums may be added up if a product is split along k. They are never in a
// type narrower than float32.
enum class PartialSums {
  kAny,       // the output or scratch memory
  kInScratch  // float32 scratch memory, in a separate step
};
PartialSums AllowedPartialSums(const GemmProblem& problem);

// Returns the index of the best of the measured times, which are in the order of the library's own
// estimate. A later time must be more than 2 % shorter than the best before it, so that noise
// doesn't decide. Times that aren't positive numbers belong to failed algorithms and don't count.
// Returns -1 if no time counts.
int PickFastest(std::span<const float> times);

}  // namespace lathe::cuda
