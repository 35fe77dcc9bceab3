// Matrix products through cuBLASLt: see core/gemm.h.
//
// What a product needs (descriptors and an algorithm) is a plan, made when a problem is first seen
// and kept. One product is queued at a time, by any thread.
#include <absl/strings/str_cat.h>
#include <cublasLt.h>

#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lathe/core/cuda/cublaslt_library.h"
#include "lathe/core/cuda/device.h"
#include "lathe/core/cuda/gemm_problem.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/error.h"

namespace lathe::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr int kCandidates = 16;                         // algorithms that are timed at most
constexpr int kTimedRuns = 3;                           // of each
constexpr size_t kMostPlans = 1 << 14;  // batches of ever new lengths must not fill the memory
constexpr int kBiasAlignment = 16;      // less is not safe in epilogues

void CheckLt(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(absl::StatusCode::kInternal,
              absl::StrCat("[cuda] ", call, ": ", CublasLt().GetStatusString(status)));
}

// A descriptor of cuBLASLt's.
template <typename T>
using Descriptor = std::unique_ptr<T, cublasStatus_t (*)(T*)>;

cudaDataType_t TypeOf(DType type) {
  return type == DType::kF32 ? CUDA_R_32F : type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

Descriptor<cublasLtMatrixLayoutOpaque_t> Layout(DType type, int64_t rows, int64_t columns,
                                                int64_t ld) {
  const CublasLtLibrary& lt = CublasLt();
  cublasLtMatrixLayout_t layout = nullptr;
  CheckLt("cublasLtMatrixLayoutCreate",
          lt.MatrixLayoutCreate(&layout, TypeOf(type), static_cast<uint64_t>(rows),
                                static_cast<uint64_t>(columns), ld));
  return {layout, lt.MatrixLayoutDestroy};
}

template <typename Value>
void Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, Value value) {
  CheckLt("cublasLtMatmulDescSetAttribute",
          CublasLt().MatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

template <typename Value>
void Set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         Value value) {
  CheckLt("cublasLtMatmulPreferenceSetAttribute",
          CublasLt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

// Where a product's matrices lie, in the order of GemmProblem.
struct Operands {
  const void* a;
  const void* b;
  void* d;
  const void* bias;  // of D's type
  void* workspace;
};

class Plan {
 public:
  explicit Plan(const GemmProblem& problem)
      : problem_(problem),
        operation_(nullptr, CublasLt().MatmulDescDestroy),
        a_(Layout(problem.type, problem.a_rows(), problem.a_columns(), problem.lda)),
        b_(Layout(problem.type, problem.b_rows(), problem.b_columns(), problem.ldb)),
        d_(Layout(problem.d_type, problem.m, problem.n, problem.ldd)) {
    cublasLtMatmulDesc_t operation = nullptr;
    CheckLt("cublasLtMatmulDescCreate",
            CublasLt().MatmulDescCreate(
                &operation, problem.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                CUDA_R_32F));
    operation_.reset(operation);
    const auto transposed = [](bool yes) -> int32_t { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
    Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed(problem.transpose_a));
    Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed(problem.transpose_b));
    if (problem.has_bias) {
      Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
      Set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{TypeOf(problem.d_type)});
    }
  }

  // Takes the library's first choice.
  void Choose(const Operands& operands) {
    algorithm_ = Candidates(operands, 1).front();
    tuned = false;
  }

  // Times what the library proposes, on these matrices; D keeps its values.
  void Tune(const Operands& operands);

  // What problem_ says, behind the work that is queued.
  cublasStatus_t Run(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm) {
    const float one = 1, beta = problem_.accumulate ? 1 : 0;
    SetBias(operands);
    return CublasLt().Matmul(Handle(), operation_.get(), &one, operands.a, a_.get(), operands.b,
                             b_.get(), &beta, operands.d, d_.get(), operands.d, d_.get(),
                             &algorithm, operands.workspace, size_t{kWorkspaceBytes}, Stream());
  }
  void Run(const Operands& operands) {
    const cublasStatus_t status = Run(operands, algorithm_);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(absl::StatusCode::kInternal,
                absl::StrCat("[cuda] cublasLtMatmul: ", CublasLt().GetStatusString(status), " for ",
                             Describe(problem_)));
  }

  bool tuned = false;

 private:
  static cublasLtHandle_t Handle() {
    static const cublasLtHandle_t handle = [] {
      cublasLtHandle_t made = nullptr;
      CheckLt("cublasLtCreate", CublasLt().Create(&made));
      return made;
    }();
    return handle;
  }

  void SetBias(const Operands& operands) {
    if (problem_.has_bias) {
      Set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    }
  }

  // At least one and at most `most` algorithms, the library's favourite first.
  std::vector<cublasLtMatmulAlgo_t> Candidates(const Operands& operands, int most);

  GemmProblem problem_;
  Descriptor<cublasLtMatmulDescOpaque_t> operation_;
  Descriptor<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

std::vector<cublasLtMatmulAlgo_t> Plan::Candidates(const Operands& operands, int most) {
  const CublasLtLibrary& lt = CublasLt();
  SetBias(operands);  // its alignment counts
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
  if (algorithms.empty()) {
    throw Error(absl::StatusCode::kInternal,
                absl::StrCat("[cuda] cuBLASLt has no algorithm for ", Describe(problem_), ": ",
                             lt.GetStatusString(status)),
                IsCapturing() ? "run a step of these shapes before one is recorded" : "");
  }
  return algorithms;
}

// Events around work on the stream.
class Stopwatch {
 public:
  Stopwatch() {
    for (cudaEvent_t& event : events_) {
      CheckCuda("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDefault));
    }
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void Start() { CheckCuda("cudaEventRecord", cudaEventRecord(events_[0], Stream())); }
  // Milliseconds since Start; waits.
  float Stop() {
    float milliseconds = 0;
    CheckCuda("cudaEventRecord", cudaEventRecord(events_[1], Stream()));
    CheckCuda("cudaEventSynchronize", cudaEventSynchronize(events_[1]));
    CheckCuda("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return milliseconds;
  }

 private:
  cudaEvent_t events_[2] = {};
};

void Plan::Tune(const Operands& operands) {
  tuned = true;
  const std::vector<cublasLtMatmulAlgo_t> candidates = Candidates(operands, kCandidates);
  algorithm_ = candidates.front();
  if (candidates.size() == 1) return;
  // A copy of D, as well aligned and not better.
  const auto size =
      static_cast<size_t>(((problem_.n - 1) * problem_.ldd + problem_.m) * SizeOf(problem_.d_type));
  struct Scratch {
    explicit Scratch(int64_t bytes) : memory(DevicePool().Allocate(bytes)) {}
    ~Scratch() { DevicePool().Free(memory); }
    void* memory;
  };
  std::unique_ptr<Scratch> scratch;
  try {
    scratch = std::make_unique<Scratch>(static_cast<int64_t>(size) + 256);
  } catch (const Error& e) {
    if (e.code() == absl::StatusCode::kResourceExhausted) return;  // the first choice will do
    throw;
  }
  Operands trial = operands;
  trial.d = static_cast<char*>(scratch->memory) + problem_.d_alignment % 256;
  CheckCuda("cudaMemcpy",
            cudaMemcpyAsync(trial.d, operands.d, size, cudaMemcpyDeviceToDevice, Stream()));
  Stopwatch watch;
  std::vector<float> times;
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    times.push_back(std::numeric_limits<float>::quiet_NaN());
    if (Run(trial, candidate) != CUBLAS_STATUS_SUCCESS) continue;  // loads its kernel, too
    watch.Start();
    for (int run = 0; run < kTimedRuns; ++run) Run(trial, candidate);
    times.back() = watch.Stop();
  }
  if (const int best = PickFastest(times); best >= 0) {
    algorithm_ = candidates[static_cast<size_t>(best)];
  }
}

class Products {
 public:
  static Products& Get() {
    static Products* products = new Products;
    return *products;
  }

  void Run(GemmArgs args) {
    const GemmOptions options = GetGemmOptions();
    ToColumnMajor(args, options);  // checks
    if (args.M == 0 || args.N == 0) return;
    if (args.K == 0 && args.beta != 0) return;
    const std::lock_guard lock(mutex_);
    // A bias is brought into C's type, and to an address that all algorithms can read from.
    const bool copies_bias = args.bias != nullptr && (args.c_type != DType::kF32 ||
                                                      AlignmentOf(args.bias) < kBiasAlignment);
    const int64_t bias_bytes = copies_bias ? RoundUp(args.N * SizeOf(args.c_type), 256) : 0;
    const int64_t zero_bytes = args.K == 0 ? std::max(args.M, args.N) * SizeOf(args.type) : 0;
    char* const workspace =
        static_cast<char*>(Workspace(kWorkspaceBytes + bias_bytes + zero_bytes));
    const void* bias = args.bias;
    if (copies_bias) {
      void* copy = workspace + kWorkspaceBytes;
      DeviceKernels<TensorKernels>().convert(copy, args.c_type, args.bias, DType::kF32, args.N);
      bias = copy;
    }
    if (args.K == 0) {  // the sum of nothing: a column times a row of zeros
      void* zeros = workspace + kWorkspaceBytes + bias_bytes;
      CheckCuda("cudaMemset", cudaMemsetAsync(zeros, 0, static_cast<size_t>(zero_bytes), Stream()));
      args.a = args.b = zeros;
      args.transpose_a = args.transpose_b = false;
      args.K = args.lda = 1;
      args.ldb = args.N;
    }
    const GemmProblem problem = ToColumnMajor(args, options);
    const Operands operands = {args.b, args.a, args.c, bias, workspace};
    const bool tune = options.tune && !options.deterministic;
    Find(problem, operands, tune).Run(operands);
  }

 private:
  Plan& Find(const GemmProblem& problem, const Operands& operands, bool tune) {
    const auto found = plans_.find(problem);
    if (found != plans_.end() && (found->second->tuned || !tune)) return *found->second;
    tune = tune && !IsCapturing();
    if (found != plans_.end() && !tune) return *found->second;
    auto plan = std::make_unique<Plan>(problem);
    tune ? plan->Tune(operands) : plan->Choose(operands);
    if (plans_.size() >= kMostPlans) plans_.clear();
    return *(plans_[problem] = std::move(plan));
  }

  std::mutex mutex_;
  std::unordered_map<GemmProblem, std::unique_ptr<Plan>, GemmProblemHash> plans_;
};

const GemmKernels table = {[](const GemmArgs& args) { Products::Get().Run(args); }};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
