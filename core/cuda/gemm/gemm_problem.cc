#include "lathe/core/cuda/gemm/gemm_problem.h"

#include <absl/hash/hash.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

// Returns the stride to use; a matrix of at most one column may have any. Throws InvalidArgument if
// `ld` is too small.
int64_t CheckedStride(const char* name, int64_t rows, int64_t columns, int64_t ld) {
  Check(ld >= rows || columns <= 1, "gemm", name, " has rows of ", rows,
        " elements but a stride of ", ld);
  return std::max(ld, std::max<int64_t>(rows, 1));
}

}  // namespace

size_t GemmProblemHash::operator()(const GemmProblem& p) const {
  return absl::HashOf(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.lda, p.ldb, p.ldd, p.type,
                      p.d_type, p.accumulate, p.epilogue, p.batch, p.a_alignment, p.b_alignment,
                      p.d_alignment, p.tf32, p.deterministic);
}

int AlignmentOf(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<int>(bits & (~bits + 1));
}

namespace {

// Returns the alignment of `address` and of all addresses that lie `stride` elements apart from it.
int AlignmentOfAll(const void* address, int64_t stride, DType type) {
  const auto offset = reinterpret_cast<const void*>(stride * SizeOf(type));
  return std::min(AlignmentOf(address), AlignmentOf(offset));
}

template <typename T>
T* Moved(T* address, int64_t elements, DType type) {
  if (address == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(address) + elements * SizeOf(type));
}

}  // namespace

GemmArgs ProductOfBatch(const GemmArgs& args, int64_t i) {
  GemmArgs one = args;
  one.a = Moved(args.a, i * args.a_stride, args.type);
  one.b = Moved(args.b, i * args.b_stride, args.type);
  one.c = Moved(args.c, i * args.c_stride, args.c_type);
  one.bias = Moved(args.bias, i * args.bias_stride, DType::kF32);
  one.a_sums = Moved(args.a_sums, i * args.bias_stride, DType::kF32);
  one.batch = 1;
  one.a_stride = one.b_stride = one.c_stride = one.bias_stride = 0;
  return one;
}

GemmProblem ToColumnMajor(const GemmArgs& args, const GemmOptions& options) {
  Check(args.M >= 0 && args.N >= 0 && args.K >= 0, "gemm", "sizes must not be negative: ", args.M,
        ", ", args.N, ", ", args.K);
  Check(args.type == DType::kF32 || args.type == DType::kBF16 || args.type == DType::kF16, "gemm",
        "a GPU can't multiply matrices of ", ToString(args.type));
  Check(args.c_type == args.type || args.c_type == DType::kF32, "gemm", "C must be ",
        ToString(args.type), " or float32 but is ", ToString(args.c_type));
  Check(args.beta == 0 || args.beta == 1, "gemm", "beta must be 0 or 1 but is ", args.beta);
  Check(args.bias == nullptr || args.beta == 0, "gemm", "beta must be 0 for a product with a bias");
  Check(args.a_sums == nullptr ||
            (args.bias == nullptr && args.transpose_a && args.c_type == DType::kF32),
        "gemm",
        "a product with sums of A's rows must have a transposed A, a float32 C and no bias");
  Check(args.batch >= 1 && args.a_stride >= 0 && args.b_stride >= 0 && args.bias_stride >= 0,
        "gemm", "a batch must have at least one product, and no stride may be negative");
  const bool apart = args.c_stride >= (args.M - 1) * args.ldc + args.N;
  const bool side_by_side =
      args.c_stride >= args.N && (args.batch - 1) * args.c_stride + args.N <= args.ldc;
  Check(args.batch == 1 || args.M == 0 || apart || side_by_side, "gemm",
        "a batch's results overlap");
  Check(args.batch == 1 || args.a_sums == nullptr || args.bias_stride >= args.M, "gemm",
        "a batch's sums overlap");
  GemmProblem p;
  p.batch = args.batch;
  p.transpose_a = args.transpose_b;
  p.transpose_b = args.transpose_a;
  p.m = args.N;
  p.n = args.M;
  p.k = args.K;
  p.lda = CheckedStride("B", p.a_rows(), p.a_columns(), args.ldb);
  p.ldb = CheckedStride("A", p.b_rows(), p.b_columns(), args.lda);
  p.ldd = CheckedStride("C", p.m, p.n, args.ldc);
  p.type = args.type;
  p.d_type = args.c_type;
  p.accumulate = args.beta != 0;
  p.epilogue = args.bias != nullptr     ? Epilogue::kBias
               : args.a_sums != nullptr ? Epilogue::kBiasGradient
                                        : Epilogue::kNone;
  p.a_alignment = AlignmentOfAll(args.b, args.b_stride, args.type);
  p.b_alignment = AlignmentOfAll(args.a, args.a_stride, args.type);
  p.d_alignment = AlignmentOfAll(args.c, args.c_stride, args.c_type);
  p.tf32 = options.allow_tf32 && args.type == DType::kF32;
  p.deterministic = options.deterministic;
  return p;
}

std::string Describe(const GemmProblem& p) {
  std::string text =
      absl::StrCat("(M, N, K) = (", p.n, ", ", p.m, ", ", p.k, "), ", ToString(p.type));
  if (p.batch > 1) text = absl::StrCat(p.batch, " times ", text);
  if (p.d_type != p.type) absl::StrAppend(&text, " to ", ToString(p.d_type));
  if (p.transpose_b) text += ", transposed A";
  if (p.transpose_a) text += ", transposed B";
  if (p.accumulate) text += ", added to C";
  if (p.epilogue == Epilogue::kBias) text += ", with a bias";
  if (p.epilogue == Epilogue::kBiasGradient) text += ", with the sums of A's rows";
  return text;
}

PartialSums AllowedPartialSums(const GemmProblem& p) {
  return p.d_type == DType::kF32 && !p.deterministic ? PartialSums::kAny : PartialSums::kInScratch;
}

int PickFastest(std::span<const float> times) {
  int best = -1;
  for (size_t i = 0; i < times.size(); ++i) {
    if (!std::isfinite(times[i]) || times[i] <= 0) continue;
    if (best < 0 || times[i] < 0.98f * times[static_cast<size_t>(best)]) best = static_cast<int>(i);
  }
  return best;
}

}  // namespace lathe::cuda
