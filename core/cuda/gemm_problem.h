// A matrix product of core/gemm.h as libraries for column-major matrices see it, and what decides
// how it is computed. Plain functions, without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lathe/core/device_kernels.h"
#include "lathe/core/gemm_options.h"

namespace lathe::cuda {

// What a product does besides.
enum class Epilogue {
  kNone,
  kBias,          // m elements of D's type, added to each column
  kBiasGradient,  // n elements of D's type: the sums of op(B)'s columns
};

// D (m, n) = op(A) op(B) + beta D, all column-major: a row-major matrix is its own transpose in
// column-major order, so C = op(A) op(B) becomes C' = op(B)' op(A)'. Everything that the choice of
// an algorithm depends on is here, so that equal problems share a plan.
struct GemmProblem {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;  // strides of columns
  DType type = DType::kF32, d_type = DType::kF32;
  bool accumulate = false;  // beta is 1
  Epilogue epilogue = Epilogue::kNone;
  int64_t batch = 1;  // products
  // What A's, B's and D's addresses, those of a whole batch, are multiples of: powers of 2 up to
  // 256.
  int a_alignment = 256, b_alignment = 256, d_alignment = 256;
  bool tf32 = false, deterministic = false;

  // As stored.
  int64_t a_rows() const { return transpose_a ? k : m; }
  int64_t a_columns() const { return transpose_a ? m : k; }
  int64_t b_rows() const { return transpose_b ? n : k; }
  int64_t b_columns() const { return transpose_b ? k : n; }

  // Whether there are other ways to the same result, for where the library offers nothing.
  bool is_optional() const { return epilogue != Epilogue::kNone || batch > 1; }

  bool operator==(const GemmProblem&) const = default;
};

struct GemmProblemHash {
  size_t operator()(const GemmProblem& problem) const;
};

// The largest power of 2 up to 256 that divides the address.
int AlignmentOf(const void* address);

// A is args.b and B is args.a. Throws InvalidArgument where sizes, strides, types or beta are none
// that core/gemm.h allows.
GemmProblem ToColumnMajor(const GemmArgs& args, const GemmOptions& options);

// The i-th of a batch, alone.
GemmArgs OneOf(const GemmArgs& args, int64_t i);

// "(M, N, K) = (128, 768, 3072), bfloat16, transposed B", in the caller's terms.
std::string Describe(const GemmProblem& problem);

// How partial sums of a product that is split along k may be added up. Never in a type narrower
// than float32.
enum class PartialSums {
  kAny,       // in the output, too
  kInScratch  // in float32 in scratch memory, in a step of its own
};
PartialSums AllowedPartialSums(const GemmProblem& problem);

// Which of the measured times, in the order of the library's own estimate, is best: a later one
// must be more than 2 % faster than the best before it, so that noise doesn't decide. Times that
// are not positive numbers don't count (their algorithms failed); -1 if there is no other.
int PickFastest(std::span<const float> times);

}  // namespace lathe::cuda
