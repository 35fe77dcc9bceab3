// A product through cuBLASLt: descriptors and an algorithm for one GemmProblem, to be kept for all
// products that are alike.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/cuda/device.h"
#include "lathe/core/cuda/gemm_problem.h"
#include "lathe/core/cuda/gemm_tuning.h"
#include "lathe/core/cuda/stopwatch.h"

namespace lathe::cuda {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr int kTimedRuns = 3;                           // of each algorithm

// Where a product's matrices lie, in the order of GemmProblem.
struct Operands {
  const void* a;
  const void* b;
  void* d;
  const void* bias;  // of D's type; its gradient, if that is the epilogue
  void* workspace;   // kWorkspaceBytes
  // From one product of a batch to the next, in elements.
  int64_t a_stride = 0, b_stride = 0, d_stride = 0, bias_stride = 0;
};

// Not thread-safe. One of Choose, Tune and Restore comes before the first Run.
class Plan {
 public:
  explicit Plan(const GemmProblem& problem);

  // Takes the library's first choice. Throws Error if there is none, but for optional problems:
  // then the plan isn't usable. The same holds for Tune.
  void Choose(const Operands& operands);
  // Times what the library proposes, on these matrices, and takes the fastest; D keeps its values.
  void Tune(const Operands& operands);
  // Takes what tuning has found before; false, and nothing changed, if the library refuses it.
  bool Restore(const TunedGemm& tuned, const Operands& operands);
  TunedGemm Tuned() const;

  // What the problem says, behind the work that is queued.
  void Run(const Operands& operands);
  // The same; false, and nothing done, if the library refuses.
  bool Try(const Operands& operands);

  bool tuned = false;
  // Of one run, where algorithms were timed; else NaN.
  float milliseconds = std::numeric_limits<float>::quiet_NaN();
  // False: the (optional) problem must be solved otherwise.
  bool usable = true;

 private:
  // A descriptor of cuBLASLt's.
  template <typename T>
  using Descriptor = std::unique_ptr<T, cublasStatus_t (*)(T*)>;
  static Descriptor<cublasLtMatrixLayoutOpaque_t> Layout(DType type, int64_t rows, int64_t columns,
                                                         int64_t ld, int64_t batch);

  // What of the operands is part of the descriptors.
  void SetAddresses(const Operands& operands);
  cublasStatus_t Run(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm);
  // At most `most` algorithms, the library's favourite first.
  std::vector<cublasLtMatmulAlgo_t> Candidates(const Operands& operands, int most);

  GemmProblem problem_;
  Descriptor<cublasLtMatmulDescOpaque_t> operation_;
  Descriptor<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

// "cuBLASLt 130100, NVIDIA H200": what algorithms that were tuned belong to.
std::string TunedSystem();

}  // namespace lathe::cuda
