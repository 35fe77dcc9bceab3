// Matrix products through cuBLASLt: see core/gemm.h.
//
// What a product needs (descriptors and an algorithm) is a plan, made when a problem is first seen
// and kept. One product is queued at a time, by any thread.
//
// Sums of A's rows (the gradient of a bias, with dW = dy^T x) are the product's epilogue where they
// can be. On their own they read A once more, 2 K M bytes in bfloat16, in up to three launches: for
// 4,096 tokens and 3,072 columns 25 MB or 6 us of an H200's bandwidth beside a product of 50 us.
#include <absl/strings/str_cat.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lathe/core/cpu/activation.h"
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
constexpr int kBiasAlignment = 16;      // less is not safe in epilogues, for gradients either

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
  const void* bias;  // of D's type; its gradient, if that is the epilogue
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
    if (problem.epilogue != Epilogue::kNone) {
      Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
          static_cast<uint32_t>(problem.epilogue == Epilogue::kBias ? CUBLASLT_EPILOGUE_BIAS
                                                                    : CUBLASLT_EPILOGUE_BGRADB));
      // No other type is allowed with these A and B.
      Set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{TypeOf(problem.d_type)});
    }
  }

  // Takes the library's first choice.
  void Choose(const Operands& operands) {
    tuned = false;
    if (const auto candidates = Candidates(operands, 1); !candidates.empty()) {
      algorithm_ = candidates.front();
    }
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
  bool Try(const Operands& operands) { return Run(operands, algorithm_) == CUBLAS_STATUS_SUCCESS; }
  void Run(const Operands& operands) {
    const cublasStatus_t status = Run(operands, algorithm_);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(absl::StatusCode::kInternal,
                absl::StrCat("[cuda] cublasLtMatmul: ", CublasLt().GetStatusString(status), " for ",
                             Describe(problem_)));
  }

  bool tuned = false;
  // Of one run, where algorithms were timed; else NaN.
  float milliseconds = std::numeric_limits<float>::quiet_NaN();
  // False: the product is to be had without its epilogue, a bias gradient, only.
  bool usable = true;

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
    if (problem_.epilogue != Epilogue::kNone) {
      Set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    }
  }

  // At most `most` algorithms, the library's favourite first. Throws if there is none, but for bias
  // gradients: then the plan isn't usable.
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
  usable = !algorithms.empty();
  if (!usable && problem_.epilogue != Epilogue::kBiasGradient) {
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
  if (candidates.empty()) return;
  algorithm_ = candidates.front();
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
    milliseconds = times[static_cast<size_t>(best)] / kTimedRuns;
  }
}

// args.a_sums by a kernel of their own.
void SumRowsOfA(const GemmArgs& args) {
  if (args.beta == 0) {
    DeviceKernels<TensorKernels>().fill(args.a_sums, DType::kF32, 0, args.M);
  }
  const auto& kernels = DeviceKernels<cpu::ActivationKernels>();
  const auto sum = [&]<typename T>(const cpu::ActivationKernels::Of<T>& of) {
    of.column_sums(args.a_sums, static_cast<const T*>(args.a), args.K, args.M, args.lda);
  };
  if (args.type == DType::kF32) return sum(kernels.f32);
  return args.type == DType::kBF16 ? sum(kernels.bf16) : sum(kernels.f16);
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
    const std::lock_guard lock(mutex_);
    if (args.a_sums != nullptr) {
      if (RunWithSums(args, options)) return;
      SumRowsOfA(args);
      args.a_sums = nullptr;
    }
    if (args.M == 0 || args.N == 0) return;
    if (args.K == 0 && args.beta != 0) return;
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
    Find(problem, operands, options)->Run(operands);
  }

 private:
  // The product with the sums of A's rows as its epilogue; false, and nothing done, where that
  // cannot be or was found to be slower.
  bool RunWithSums(const GemmArgs& args, const GemmOptions& options) {
    // The epilogue overwrites; in which order it adds is not documented.
    if (args.beta != 0 || options.deterministic || AlignmentOf(args.a_sums) < kBiasAlignment ||
        args.M == 0 || args.N == 0 || args.K == 0) {
      return false;
    }
    const Operands operands = {args.b, args.a, args.c, args.a_sums, Workspace(kWorkspaceBytes)};
    const auto plan = Find(ToColumnMajor(args, options), operands, options,
                           [&](Plan& tuned) { Compare(tuned, operands, args, options); });
    plan->usable = plan->usable && plan->Try(operands);
    return plan->usable;
  }

  // Whether a plan with an epilogue that was just tuned is worth it.
  void Compare(Plan& plan, const Operands& operands, GemmArgs args, const GemmOptions& options) {
    if (!plan.usable) return;
    Stopwatch watch;
    SumRowsOfA(args);
    watch.Start();
    for (int run = 0; run < kTimedRuns; ++run) SumRowsOfA(args);
    const float sums = watch.Stop() / kTimedRuns;
    args.a_sums = nullptr;
    const float product = Find(ToColumnMajor(args, options), operands, options)->milliseconds;
    plan.usable = !(plan.milliseconds > product + sums);
  }

  // The problem's plan. `when_tuned` is called if it is made by timing, before it is kept.
  std::shared_ptr<Plan> Find(
      const GemmProblem& problem, const Operands& operands, const GemmOptions& options,
      const std::function<void(Plan&)>& when_tuned = [](Plan&) {}) {
    bool tune = options.tune && !options.deterministic;
    const auto found = plans_.find(problem);
    if (found != plans_.end() && (found->second->tuned || !tune)) return found->second;
    tune = tune && !IsCapturing();
    if (found != plans_.end() && !tune) return found->second;
    auto plan = std::make_shared<Plan>(problem);
    tune ? plan->Tune(operands) : plan->Choose(operands);
    if (tune) when_tuned(*plan);
    // While work is recorded the library may refuse what it has otherwise.
    if (!plan->usable && IsCapturing()) return plan;
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_[problem] = std::move(plan);
  }

  std::mutex mutex_;
  std::unordered_map<GemmProblem, std::shared_ptr<Plan>, GemmProblemHash> plans_;
};

const GemmKernels table = {[](const GemmArgs& args) { Products::Get().Run(args); }};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
