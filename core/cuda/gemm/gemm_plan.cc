#include "lathe/core/cuda/gemm/gemm_plan.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <array>
#include <cstring>

#include "lathe/core/base/error.h"
#include "lathe/core/base/log.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/gemm/cublaslt_library.h"
#include "lathe/core/device_libraries.h"

namespace lathe::cuda {
namespace {

constexpr int kCandidates = 16;  // at most so many algorithms are timed

void CheckLt(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(absl::StatusCode::kInternal,
              absl::StrCat("[cuda] ", call, ": ", CublasLt().GetStatusString(status)));
}

cudaDataType_t TypeOf(DType type) {
  return type == DType::kF32 ? CUDA_R_32F : type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

template <typename Value>
void Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, Value value) {
  CheckLt("cublasLtMatmulDescSetAttribute",
          CublasLt().MatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

template <typename Value>
void Set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, Value value) {
  CheckLt("cublasLtMatrixLayoutSetAttribute",
          CublasLt().MatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)));
}

template <typename Value>
void Set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         Value value) {
  CheckLt("cublasLtMatmulPreferenceSetAttribute",
          CublasLt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

[[maybe_unused]] const bool registered = RegisterDeviceLibrary([]() -> std::string {
  try {
    return absl::StrCat("cuBLASLt ", CublasLt().GetVersion());
  } catch (const Error& e) {
    return "no cuBLASLt: " + WithoutTag(e.message());
  }
});

cublasLtHandle_t Handle() {
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t made = nullptr;
    CheckLt("cublasLtCreate", CublasLt().Create(&made));
    return made;
  }();
  return handle;
}

}  // namespace

Plan::Descriptor<cublasLtMatrixLayoutOpaque_t> Plan::Layout(DType type, int64_t rows,
                                                            int64_t columns, int64_t ld,
                                                            int64_t batch) {
  const CublasLtLibrary& lt = CublasLt();
  cublasLtMatrixLayout_t layout = nullptr;
  CheckLt("cublasLtMatrixLayoutCreate",
          lt.MatrixLayoutCreate(&layout, TypeOf(type), static_cast<uint64_t>(rows),
                                static_cast<uint64_t>(columns), ld));
  Descriptor<cublasLtMatrixLayoutOpaque_t> made(layout, lt.MatrixLayoutDestroy);
  if (batch > 1) {
    Set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
  }
  return made;
}

Plan::Plan(const GemmProblem& problem)
    : problem_(problem),
      operation_(nullptr, CublasLt().MatmulDescDestroy),
      a_(Layout(problem.type, problem.a_rows(), problem.a_columns(), problem.lda, problem.batch)),
      b_(Layout(problem.type, problem.b_rows(), problem.b_columns(), problem.ldb, problem.batch)),
      d_(Layout(problem.d_type, problem.m, problem.n, problem.ldd, problem.batch)) {
  cublasLtMatmulDesc_t operation = nullptr;
  CheckLt("cublasLtMatmulDescCreate",
          CublasLt().MatmulDescCreate(
              &operation, problem.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
              CUDA_R_32F));
  operation_.reset(operation);
  const auto transposed = [](bool yes) -> int32_t { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed(problem.transpose_a));
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed(problem.transpose_b));
  if (problem.epilogue != Epilogue::kNone) {
    Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
        static_cast<uint32_t>(problem.epilogue == Epilogue::kBias ? CUBLASLT_EPILOGUE_BIAS
                                                                  : CUBLASLT_EPILOGUE_BGRADB));
    // The library allows no other type with these A and B.
    Set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{TypeOf(problem.d_type)});
  }
}

void Plan::Choose(const Operands& operands) {
  tuned = false;
  if (const auto candidates = Candidates(operands, 1); !candidates.empty()) {
    algorithm_ = candidates.front();
  }
}

cublasStatus_t Plan::Run(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1, beta = problem_.accumulate ? 1 : 0;
  SetAddresses(operands);
  return CublasLt().Matmul(Handle(), operation_.get(), &one, operands.a, a_.get(), operands.b,
                           b_.get(), &beta, operands.d, d_.get(), operands.d, d_.get(), &algorithm,
                           operands.workspace, size_t{kWorkspaceBytes}, Stream());
}

bool Plan::Try(const Operands& operands) {
  return Run(operands, algorithm_) == CUBLAS_STATUS_SUCCESS;
}

void Plan::Run(const Operands& operands) {
  const cublasStatus_t status = Run(operands, algorithm_);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(absl::StatusCode::kInternal,
              absl::StrCat("[cuda] cublasLtMatmul: ", CublasLt().GetStatusString(status), " for ",
                           Describe(problem_)));
}

void Plan::SetAddresses(const Operands& operands) {
  if (problem_.epilogue != Epilogue::kNone) {
    Set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (problem_.batch == 1) return;
  // The problem has no strides between the products of a batch, because its weights may lie
  // anywhere. So each call sets them.
  Set(a_.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, operands.a_stride);
  Set(b_.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, operands.b_stride);
  Set(d_.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, operands.d_stride);
  if (problem_.epilogue != Epilogue::kNone) {
    Set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, operands.bias_stride);
  }
}

std::vector<cublasLtMatmulAlgo_t> Plan::Candidates(const Operands& operands, int most) {
  const CublasLtLibrary& lt = CublasLt();
  SetAddresses(operands);  // the choice depends on the bias's alignment
  cublasLtMatmulPreference_t made = nullptr;
  CheckLt("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate(&made));
  const Descriptor<cublasLtMatmulPreferenceOpaque_t> preference(made, lt.MatmulPreferenceDestroy);
  const auto alignment = [](int bytes) { return static_cast<uint32_t>(bytes); };
  Set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  Set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{AllowedPartialSums(problem_) == PartialSums::kAny
                   ? CUBLASLT_REDUCTION_SCHEME_MASK
                   : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  Set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(problem_.a_alignment));
  Set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(problem_.b_alignment));
  Set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(problem_.d_alignment));
  Set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(problem_.d_alignment));

  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results = {};
  int count = 0;
  const cublasStatus_t status =
      lt.MatmulAlgoGetHeuristic(Handle(), operation_.get(), a_.get(), b_.get(), d_.get(), d_.get(),
                                made, most, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status == CUBLAS_STATUS_SUCCESS) {
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    }
  }
  usable = !algorithms.empty();
  if (!usable && !problem_.is_optional()) {
    throw Error(absl::StatusCode::kInternal,
                absl::StrCat("[cuda] cuBLASLt has no algorithm for ", Describe(problem_), ": ",
                             lt.GetStatusString(status)),
                IsCapturing() ? "run one step with these shapes before a step is recorded" : "");
  }
  if (!usable && !IsCapturing()) {
    LogDebug(absl::StrCat("cuBLASLt has no algorithm for ", Describe(problem_), " (",
                          lt.GetStatusString(status), "): Lathe computes it in parts"));
  }
  return algorithms;
}

void Plan::Tune(const Operands& operands) {
  tuned = true;
  const std::vector<cublasLtMatmulAlgo_t> candidates = Candidates(operands, kCandidates);
  if (candidates.empty()) return;
  algorithm_ = candidates.front();
  // A copy of D, exactly as well aligned.
  const int64_t elements = (problem_.n - 1) * problem_.ldd + problem_.m;
  const int64_t stride = RoundUp(elements, 256), size = SizeOf(problem_.d_type);
  struct Scratch {
    explicit Scratch(int64_t bytes) : memory(DevicePool().Allocate(bytes)) {}
    ~Scratch() { DevicePool().Free(memory); }
    void* memory;
  };
  std::unique_ptr<Scratch> scratch;
  try {
    scratch = std::make_unique<Scratch>(problem_.batch * stride * size + 256);
  } catch (const Error& e) {
    if (e.code() == absl::StatusCode::kResourceExhausted) return;  // keeps the first choice
    throw;
  }
  Operands trial = operands;
  trial.d = static_cast<char*>(scratch->memory) + problem_.d_alignment % 256;
  trial.d_stride = stride;
  for (int64_t i = 0; i < problem_.batch; ++i) {
    CheckCuda(
        "cudaMemcpy",
        cudaMemcpyAsync(static_cast<char*>(trial.d) + i * stride * size,
                        static_cast<char*>(operands.d) + i * operands.d_stride * size,
                        static_cast<size_t>(elements * size), cudaMemcpyDeviceToDevice, Stream()));
  }
  Stopwatch watch;
  std::vector<float> times;
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    times.push_back(std::numeric_limits<float>::quiet_NaN());
    if (Run(trial, candidate) != CUBLAS_STATUS_SUCCESS) continue;  // this run also loads the kernel
    watch.Start();
    for (int run = 0; run < kTimedRuns; ++run) Run(trial, candidate);
    times.back() = watch.Stop();
  }
  if (const int best = PickFastest(times); best >= 0) {
    algorithm_ = candidates[static_cast<size_t>(best)];
    milliseconds = times[static_cast<size_t>(best)] / kTimedRuns;
  }
}

bool Plan::Restore(const TunedGemm& known, const Operands& operands) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm) == sizeof(known.algorithm));
  std::memcpy(&algorithm, known.algorithm.data(), sizeof(algorithm));
  if (known.usable) {
    SetAddresses(operands);
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status = CublasLt().MatmulAlgoCheck(
        Handle(), operation_.get(), a_.get(), b_.get(), d_.get(), d_.get(), &algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.state != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > size_t{kWorkspaceBytes}) {
      return false;
    }
  } else if (!problem_.is_optional()) {
    return false;
  }
  algorithm_ = algorithm;
  usable = known.usable;
  milliseconds = known.milliseconds;
  tuned = true;
  return true;
}

TunedGemm Plan::Tuned() const {
  TunedGemm known = {.usable = usable, .milliseconds = milliseconds};
  std::memcpy(known.algorithm.data(), &algorithm_, sizeof(algorithm_));
  return known;
}

std::string TunedSystem() {
  int device = 0;
  cudaDeviceProp properties;
  CheckCuda("cudaGetDevice", cudaGetDevice(&device));
  CheckCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device));
  return absl::StrCat("cuBLASLt ", CublasLt().GetVersion(), ", ", properties.name, ", ",
                      properties.multiProcessorCount, " multiprocessors");
}

}  // namespace lathe::cuda
