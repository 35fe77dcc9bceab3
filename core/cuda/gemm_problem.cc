#include "lathe/core/cuda/gemm_problem.h"

#include <absl/hash/hash.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "lathe/core/error.h"

namespace lathe::cuda {
namespace {

// A matrix of one column has any stride.
int64_t CheckedStride(const char* name, int64_t rows, int64_t columns, int64_t ld) {
  Check(ld >= rows || columns <= 1, "gemm", name, " has rows of ", rows,
        " elements but a stride of ", ld);
  return std::max(ld, std::max<int64_t>(rows, 1));
}

}  // namespace

size_t GemmProblemHash::operator()(const GemmProblem& p) const {
  return absl::HashOf(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.lda, p.ldb, p.ldd, p.type,
                      p.d_type, p.accumulate, p.epilogue, p.a_alignment, p.b_alignment,
                      p.d_alignment, p.tf32, p.deterministic);
}

int AlignmentOf(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<int>(bits & (~bits + 1));
}

GemmProblem ToColumnMajor(const GemmArgs& args, const GemmOptions& options) {
  Check(args.M >= 0 && args.N >= 0 && args.K >= 0, "gemm", "sizes must not be negative: ", args.M,
        ", ", args.N, ", ", args.K);
  Check(args.type == DType::kF32 || args.type == DType::kBF16 || args.type == DType::kF16, "gemm",
        "GPUs have no products of ", ToString(args.type));
  Check(args.c_type == args.type || args.c_type == DType::kF32, "gemm", "C must be ",
        ToString(args.type), " or float32 but is ", ToString(args.c_type));
  Check(args.beta == 0 || args.beta == 1, "gemm", "beta must be 0 or 1 but is ", args.beta);
  Check(args.bias == nullptr || args.beta == 0, "gemm", "a bias needs beta 0");
  Check(args.a_sums == nullptr ||
            (args.bias == nullptr && args.transpose_a && args.c_type == DType::kF32),
        "gemm", "sums of A's rows need a transposed A, a float32 C and no bias");
  GemmProblem p;
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
  p.a_alignment = AlignmentOf(args.b);
  p.b_alignment = AlignmentOf(args.a);
  p.d_alignment = AlignmentOf(args.c);
  p.tf32 = options.allow_tf32 && args.type == DType::kF32;
  p.deterministic = options.deterministic;
  return p;
}

std::string Describe(const GemmProblem& p) {
  std::string text =
      absl::StrCat("(M, N, K) = (", p.n, ", ", p.m, ", ", p.k, "), ", ToString(p.type));
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
