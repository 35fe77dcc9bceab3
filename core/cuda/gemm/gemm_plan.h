// A plan is cuBLASLt's descriptors and an algorithm for one GemmProblem. It serves all products of
// that problem.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/cuda/gemm/gemm_problem.h"
#include "lathe/core/cuda/gemm/gemm_tuning.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/cuda/runtime/stopwatch.h"

namespace lathe::cuda {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // NVIDIA's recommendation for Hopper
constexpr int kTimedRuns = 3;                           // of each algorithm

// The addresses of a product's matrices, named as in GemmProblem.
struct Operands {
  const void* a;
  const void* b;
  void* d;
  const void* bias;  // of D's type; the bias's gradient if that is the epilogue
  void* workspace;   // kWorkspaceBytes
  // The distance from one product of a batch to the next, in elements.
  int64_t a_stride = 0, b_stride = 0, d_stride = 0, bias_stride = 0;
};

// Not thread-safe. The first Run comes after one of Choose, Tune and Restore.
class Plan {
 public:
  explicit Plan(const GemmProblem& problem);

  // Takes the library's first choice. If there is none, throws Error or, for an optional problem,
  // sets `usable` to false. The latter holds for Tune, too.
  void Choose(const Operands& operands);
  // Times the algorithms that the library proposes on these matrices, and takes the fastest. D
  // keeps its values.
  void Tune(const Operands& operands);
  // Takes an algorithm that earlier tuning found. Returns false and changes nothing if the library
  // refuses it.
  bool Restore(const TunedGemm& tuned, const Operands& operands);
  TunedGemm Tuned() const;

  // Queues the problem's product. Throws Error if the library refuses.
  void Run(const Operands& operands);
  // Does the same, but returns false without doing anything if the library refuses.
  bool Try(const Operands& operands);

  bool tuned = false;
  // The time of one run, if algorithms were timed; else NaN.
  float milliseconds = std::numeric_limits<float>::quiet_NaN();
  // False if the (optional) problem must be solved in another way.
  bool usable = true;

 private:
  // A descriptor of cuBLASLt.
  template <typename T>
  using Descriptor = std::unique_ptr<T, cublasStatus_t (*)(T*)>;
  static Descriptor<cublasLtMatrixLayoutOpaque_t> Layout(DType type, int64_t rows, int64_t columns,
                                                         int64_t ld, int64_t batch);

  // Sets the bias's address and the batch strides, which cuBLASLt keeps in its descriptors.
  void SetAddresses(const Operands& operands);
  cublasStatus_t Run(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm);
  // Returns at most `most` algorithms, the library's favourite first.
  std::vector<cublasLtMatmulAlgo_t> Candidates(const Operands& operands, int most);

  GemmProblem problem_;
  Descriptor<cublasLtMatmulDescOpaque_t> operation_;
  Descriptor<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

// Returns the system for which tuned algorithms are valid, like "cuBLASLt 130100, NVIDIA H200, 132
// multiprocessors".
std::string TunedSystem();

}  // namespace lathe::cuda
